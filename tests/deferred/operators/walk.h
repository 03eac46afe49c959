// deferred/operators/walk.h: every operator of LibTorch's dispatcher, run in child processes.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace smp::deferred {

/// What was seen of one operator, over all arguments that it took.
struct Finding {
  std::string name;  ///< with overload
  int accepted = 0;  ///< arguments that the ordinary run took
  bool put_off = false;
  std::string refused;           ///< what was said under the scope, if it was refused
  std::string refused_shapes;    ///< what was said on shapes alone
  std::string failed;            ///< what was wrong under the scope
  std::string failed_on_shapes;  ///< what was wrong on shapes alone
};

struct Effort {
  int attempts = 80;  ///< arguments that are made up at most
  int enough = 4;     ///< of which so many have to be taken
};

/// Returns the full names of LibTorch's operators, sorted.
std::vector<std::string> all_operators();

/// Tries made-up arguments on each of `names` until the ordinary run takes some, then compares it
/// with runs under smp::delay_param_initialization and on shapes alone. Operators run in child
/// processes, so one that ends its process ends nothing else.
std::vector<Finding> walk(const std::vector<std::string>& names, const Effort& effort);

}  // namespace smp::deferred
