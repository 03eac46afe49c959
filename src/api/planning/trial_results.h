// api/planning/trial_results.h: what the microbatches of a trial run give, and whether they give it
// again.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <string>
#include <vector>

namespace smp {

/// Returns shapes and types of the tensors, and their values if they are asked for and there are
/// some to read, as bytes. What runs in a trial does not see it read them.
std::string result_bytes(const std::vector<at::Tensor>& tensors, bool values);

/// The first and the last results of each microbatch. A body that gives others when it runs again,
/// with the same random numbers, keeps something that is no member of a module. Threads: any, one
/// at a time.
class TrialResults {
 public:
  /// @param values  false: the trial has shapes only
  TrialResults(int microbatches, bool values)
      : first_(static_cast<std::size_t>(microbatches)), last_(first_.size()), values_(values) {}

  /// Notes what a run of `microbatch` gave: the first one as bytes, since another run may write
  /// there; the last one without its graph.
  void note(int microbatch, const std::vector<at::Tensor>& results);

  /// Returns whether the last results of some microbatch differ from its first ones.
  bool changed() const;

 private:
  std::vector<std::string> first_;
  std::vector<std::vector<at::Tensor>> last_;
  bool values_;
};

}  // namespace smp
