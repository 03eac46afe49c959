// tp/losses/class_parts.h: cross entropy of scores that are split along the classes, in two halves:
// what a rank finds out of its own classes, and what becomes of the parts of all.
//
// N rows of the samples of all ranks, B of this rank's.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace smp::tp {

/// The classes that a rank holds: `first` and on, of which `real` are no padding.
struct OwnClasses {
  /// @param held         classes of each rank
  /// @param num_classes  of all ranks together without padding; nothing: no padding
  /// @throws UsageError  naming `caller`, if the ranks have not as many.
  OwnClasses(std::int64_t held, std::optional<std::int64_t> num_classes, const char* caller);
  std::int64_t first = 0;
  std::int64_t real = 0;
  std::int64_t all = 0;
};

/// Returns labels as int64. @param rows  sizes that they must have
/// @throws UsageError  naming `caller`, if one is no class, or their type or sizes are others.
at::Tensor checked_labels(const at::Tensor& labels, at::IntArrayRef rows, const OwnClasses& classes,
                          std::int64_t ignore_index, const char* caller);

/// Returns log-sum-exp and score of the label, [.., 2], in float32 for scores of 16 bits: torch's
/// cross entropy does not add up halves either.
/// @param scores     [.., held]
/// @param own_label  [..], counted from the first own class; other ranks' are out of range
/// @param real       classes that are no padding
at::Tensor parts_of_scores(const at::Tensor& scores, const at::Tensor& own_label,
                           std::int64_t real);

/// Joins the parts [N, .., 2] of all ranks to losses [B, ..] of `dtype`. Suspends.
/// @param labels  [N, ..] of checked_labels(); those that are ignore_index cost nothing
at::Tensor losses_of_parts(const at::Tensor& parts, const at::Tensor& labels,
                           std::int64_t ignore_index, at::ScalarType dtype);

}  // namespace smp::tp
