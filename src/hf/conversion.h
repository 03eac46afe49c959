// hf/conversion.h: values in another dtype, and what that changes.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

namespace smp::hf {

/// What converting has changed so far.
struct Losses {
  std::int64_t rounded = 0;   ///< elements that are no longer what they were
  double largest_change = 0;  ///< of one, relative to what it was
};

/// Returns `values` as `dtype`, and adds to `losses`. Memory beside the result: a few MB.
/// @param name  for messages
/// @throws UsageError  a number would become infinite.
at::Tensor converted(const at::Tensor& values, c10::ScalarType dtype, const std::string& name,
                     Losses& losses);

}  // namespace smp::hf
