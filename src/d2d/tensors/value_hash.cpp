// d2d/tensors/value_hash.cpp: the bytes of the values, with one NaN for all.
#include "d2d/tensors/value_hash.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <xxhash.h>

#include <optional>

namespace smp::d2d {
namespace {

/// Returns the integers of an element's size, or nothing if its type has no two NaNs.
std::optional<c10::ScalarType> bits_of(c10::ScalarType type) {
  switch (type) {
    case c10::ScalarType::Float8_e5m2:
    case c10::ScalarType::Float8_e4m3fn:
      return c10::ScalarType::Byte;
    case c10::ScalarType::Half:
    case c10::ScalarType::BFloat16:
      return c10::ScalarType::Short;
    case c10::ScalarType::Float:
      return c10::ScalarType::Int;
    case c10::ScalarType::Double:
      return c10::ScalarType::Long;
    default:
      return std::nullopt;
  }
}

/// Returns contiguous `values` with all bits set in each NaN, which is one in all of these types.
at::Tensor with_one_nan(const at::Tensor& values) {
  const auto bits = bits_of(values.scalar_type());
  if (!bits) return values;
  const auto wide = *bits == c10::ScalarType::Byte ? values.to(at::kFloat) : values;
  const auto nan = wide.ne(wide);
  if (!nan.any().item<bool>()) return values;
  const auto ones = *bits == c10::ScalarType::Byte ? 255 : -1;
  return values.view(*bits).masked_fill(nan, ones);
}

}  // namespace

std::uint64_t value_hash(const at::Tensor& tensor, std::uint64_t seed) {
  const at::NoGradGuard no_grad;
  auto values = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous();
  if (values.is_complex()) values = at::view_as_real(values);
  values = with_one_nan(values);
  const auto bytes = values.nbytes();
  return XXH3_64bits_withSeed(bytes > 0 ? values.const_data_ptr() : nullptr, bytes, seed);
}

}  // namespace smp::d2d
