// checkpoint/first_difference.cpp: hashes first, since nearly all that is compared is equal.
#include "checkpoint/first_difference.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <sstream>

#include "base/check.h"
#include "d2d/tensors/value_hash.h"

namespace smp::checkpoints {
namespace {

at::Tensor plain_row(const at::Tensor& tensor, c10::ScalarType type) {
  return tensor.detach().cpu().to(type).resolve_conj().resolve_neg().reshape({-1}).contiguous();
}

/// Returns values of a type that LibTorch compares, which holds each of them.
at::Tensor comparable(const at::Tensor& row) {
  const auto type = row.scalar_type();
  if (type == c10::ScalarType::Float4_e2m1fn_x2) return row.view(at::kByte);
  if (c10::isComplexType(type)) return row.to(at::kComplexDouble);
  return c10::isFloatingType(type) ? row.to(at::kDouble) : row;
}

/// Returns a mask of the elements that differ.
at::Tensor different(const at::Tensor& first, const at::Tensor& second) {
  if (first.is_complex()) {
    return different(at::view_as_real(first), at::view_as_real(second)).any(/*dim=*/-1);
  }
  return first.ne(second).logical_and(first.eq(first).logical_or(second.eq(second)));
}

std::string text_of(const at::Tensor& element) {
  std::ostringstream text;
  text.precision(9);
  text << element.item();
  return text.str();
}

}  // namespace

c10::ScalarType common_type(c10::ScalarType first, c10::ScalarType second) {
  const auto is_odd = [](c10::ScalarType one) {
    return c10::isFloat8Type(one) || c10::isBarebonesUnsignedType(one);
  };
  if (first == second) return first;
  if (!is_odd(first) && !is_odd(second)) return c10::promoteTypes(first, second);
  const bool complex = c10::isComplexType(first) || c10::isComplexType(second);
  return complex ? at::kComplexDouble : at::kDouble;
}

std::optional<Difference> first_difference(const at::Tensor& first, const at::Tensor& second,
                                           c10::ScalarType type) {
  const at::NoGradGuard no_grad;
  if (first.is_same(second)) return std::nullopt;
  const auto a = plain_row(first, type);
  const auto b = plain_row(second, type);
  if (d2d::value_hash(a) == d2d::value_hash(b)) return std::nullopt;
  const auto values = comparable(a);
  const auto others = comparable(b);
  const auto mask = different(values, others);
  if (!mask.any().item<bool>()) return std::nullopt;
  auto number = mask.to(at::kByte).argmax().item<std::int64_t>();
  Difference found{{}, text_of(values[number]), text_of(others[number])};
  for (auto d = first.dim(); d-- > 0; number /= first.size(d)) {
    found.place.insert(found.place.begin(), number % first.size(d));
  }
  return found;
}

}  // namespace smp::checkpoints
