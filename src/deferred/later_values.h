// deferred/later_values.h: values that are loaded into a delayed tensor before anybody brings them:
// what the program does to the tensor before and after the load keeps its order.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <utility>

#include "deferred/recipe.h"

namespace smp::deferred {

/// The values of one load into one delayed tensor. Threads: the one that built the tensor.
class LaterValues {
 public:
  /// Values of `type` that a delayed tensor, `target`, is to take.
  LaterValues(const at::Tensor& target, at::ScalarType type);

  /// Returns, once, a delayed tensor of the target's shape that stands for the values. Operators on
  /// it are recorded: the copy into the target, above all.
  [[nodiscard]] at::Tensor take_stand_in() { return std::exchange(stand_in_, {}); }
  /// True if some tensor here depends on the values: they were not overwritten, and it did not go
  /// to another rank.
  [[nodiscard]] bool needed() const noexcept { return !content_.expired(); }
  /// Brings the values, in the target's shape and of the type above; only if needed().
  void give(const at::Tensor& values) const;
  /// Gives the target its values if nothing else is missing; it has been announced to a
  /// Materialiser.
  void fill_target() const;

 private:
  at::Tensor target_;
  at::Tensor stand_in_;
  std::weak_ptr<const Content> content_;
};

}  // namespace smp::deferred
