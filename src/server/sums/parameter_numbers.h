// server/sums/parameter_numbers.h: dense numbers for the leaves that gradients go to, so that what
// is known about each is found in an array.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/flat_hash_map.h>

#include <cstdint>
#include <vector>

namespace smp::server {

using ParameterNumber = std::uint32_t;

/// Numbers leaves from 0 to size() - 1, by the identity of the tensor. Parameters of placed models
/// keep theirs; other leaves, such as tensors that user code makes inside a body, have one until
/// the step ends. Holds no tensor: a leaf at the address of one that is gone gets that one's
/// number. Threads: the rank's.
class ParameterNumbers {
 public:
  /// Gives `parameter`, of a model that is being placed, a lasting number; between steps only. The
  /// same parameter placed again keeps its number.
  ParameterNumber place(const at::Tensor& parameter);

  /// Returns the number of `leaf`; a leaf that is not known gets a new one.
  ParameterNumber of(const at::Tensor& leaf);

  /// Forgets the leaves that were never placed: their addresses would pile up from step to step.
  void forget_unplaced();
  /// Forgets everything, because models ended and the others are about to be placed again.
  void clear();

  ParameterNumber size() const noexcept { return static_cast<ParameterNumber>(leaves_.size()); }
  ParameterNumber placed() const noexcept { return placed_; }

 private:
  ska::flat_hash_map<const void*, ParameterNumber> numbers_;
  std::vector<const void*> leaves_;  // by number
  ParameterNumber placed_ = 0;       // the lower numbers last
};

}  // namespace smp::server
