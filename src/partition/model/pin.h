// partition/model/pin.h: a wish of the user.
#pragma once

#include <string>

namespace smp::partitioning {

/// A module, and everything below it that has no pin of its own, placed by hand.
struct Pin {
  std::string path;
  int pp_rank = 0;
  std::string origin;  ///< what asked for it, for messages: "set_partition", "plan.json"
};

}  // namespace smp::partitioning
