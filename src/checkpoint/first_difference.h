// checkpoint/first_difference.h: where two tensors that should have the same values do not.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace smp::checkpoints {

/// One element of two tensors.
struct Difference {
  std::vector<std::int64_t> place;  ///< indices
  std::string first, second;        ///< the values
};

/// Returns the first element in which `first` and `second` differ, dense tensors of one shape, when
/// both have elements of `type`; nothing if there is none. A NaN equals every other NaN, 0 equals
/// -0.
[[nodiscard]] std::optional<Difference> first_difference(const at::Tensor& first,
                                                         const at::Tensor& second,
                                                         c10::ScalarType type);

/// Returns a type in which elements of both types can be compared: theirs, or one that holds both;
/// for types that LibTorch does not promote, double precision.
c10::ScalarType common_type(c10::ScalarType first, c10::ScalarType second);

}  // namespace smp::checkpoints
