// checkpoint/exchange.h: tensors by name from the ranks that have them to the ranks that want them,
// one at a time.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <exception>
#include <functional>
#include <string>
#include <vector>

#include "checkpoint/tensor_info.h"
#include "d2d/collectives/communicator.h"
#include "smp/error.h"

namespace smp::checkpoint {

/// What one rank can give.
struct Offer {
  std::vector<TensorInfo> tensors;
  /// The values of one of them; called in any order, each at most twice.
  std::function<at::Tensor(std::size_t)> read;
  /// Those that all ranks which offer them read together, because each has a part: one element for
  /// each of `tensors`, or empty. They are read there also if another rank gives them.
  std::vector<bool> together = {};
  /// "the file weights.safetensors", for messages.
  std::string source = {};
  /// Why the rank cannot take part; then nobody does.
  std::string problem;
  /// Reading may fail, as from a file: all that is wanted is read once before any of it is given,
  /// so that a failure changes nothing.
  bool read_first = false;
};

/// Throws on every rank what `own_problem` is on some: the first rank's that has one.
void agree(const d2d::Communicator& ranks, const std::exception_ptr& own_problem, const char* what);

/// All ranks of a communicator make the same one and call the same functions in the same order.
/// What fails on one of them is thrown on all, at the same place, as UsageError, ResourceError or
/// UnsupportedError; nobody waits for a rank that failed. Threads: the rank's; suspends.
class Exchange {
 public:
  /// Tells all ranks what each can give. @param what  for messages, as in "load_state_dict"
  /// @throws UsageError  ranks offer a tensor of one name with another shape or dtype.
  Exchange(const d2d::Communicator& ranks, Offer own, const char* what);

  /// What is there on any rank: first what the first rank gives, in its order, then what only
  /// others have.
  const std::vector<TensorInfo>& tensors() const { return tensors_; }

  /// Gives this rank those of tensors() that it wants: its own where it has them, else those of the
  /// first rank that does. Memory: one tensor beside what `take` keeps.
  /// @param wanted  one element for each of tensors(); may differ between ranks
  /// @param take    gets the number in tensors() and the values: own ones as they are, others new
  /// @throws UsageError  several ranks want a tensor, and have different values of it.
  void deliver(const std::vector<bool>& wanted,
               const std::function<void(std::size_t, const at::Tensor&)>& take);

  void agree(const std::exception_ptr& own_problem) const {
    checkpoint::agree(ranks_, own_problem, what_);
  }

 private:
  void read_offers(const std::vector<d2d::Payload>& offers);
  std::vector<std::string> wishes_of_all(const std::vector<bool>& wanted) const;
  void require_readable(const std::vector<std::string>& wishes) const;
  void compare_values(const std::vector<std::string>& wishes) const;
  at::Tensor own_values(std::size_t index) const;
  bool gives(int position, std::size_t index) const;
  bool reads_together(std::size_t index) const;

  d2d::Communicator ranks_;
  Offer own_;
  const char* what_;
  std::vector<TensorInfo> tensors_;
  std::vector<std::vector<std::size_t>> places_;  // by position and tensor: in its offer; or kNone
};

}  // namespace smp::checkpoint
