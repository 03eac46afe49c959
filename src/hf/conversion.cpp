// hf/conversion.cpp: see the header.
#include "hf/conversion.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "base/check.h"

namespace smp::hf {
namespace {

constexpr std::int64_t kElements = 1 << 18;  // at a time

void add_losses(const at::Tensor& before, const at::Tensor& after, const std::string& name,
                Losses& losses) {
  const auto was = before.to(at::kDouble), is = after.to(at::kDouble);
  const auto overflown = is.isinf().logical_and(was.isinf().logical_not());
  if (overflown.any().item<bool>()) {
    const auto value = was.masked_select(overflown)[0].item<double>();
    throw UsageError(base::concat("hf::save: ", after.scalar_type(), " cannot hold ", value,
                                  " of \"", name, "\", which would become infinite; ",
                                  after.scalar_type() == at::kHalf
                                      ? "choose BFloat16, which has the range of Float, or "
                                      : "",
                                  "keep the dtype"));
  }
  const auto changed = is.ne(was).logical_and(was.isnan().logical_not());
  const auto count = changed.sum().item<std::int64_t>();
  if (count == 0) return;
  losses.rounded += count;
  const auto relative =
      ((is - was) / was).abs().masked_select(changed.logical_and(was.ne(0))).max();
  losses.largest_change = std::max(losses.largest_change, relative.item<double>());
}

/// True if numbers of `type` hold all those of `other`. LibTorch does not compare types of 8 bits.
bool holds_all(c10::ScalarType type, c10::ScalarType other) {
  return !c10::isFloat8Type(other) && c10::promoteTypes(other, type) == type;
}

}  // namespace

at::Tensor converted(const at::Tensor& values, c10::ScalarType dtype, const std::string& name,
                     Losses& losses) {
  if (values.scalar_type() == dtype) return values;
  const auto before = values.detach().to(at::kCPU).contiguous().view({-1});
  const auto after = before.to(dtype);
  if (!holds_all(dtype, values.scalar_type())) {
    for (std::int64_t begin = 0; begin < before.numel(); begin += kElements) {
      const auto count = std::min(kElements, before.numel() - begin);
      add_losses(before.narrow(0, begin, count), after.narrow(0, begin, count), name, losses);
    }
  }
  return after.view(values.sizes());
}

}  // namespace smp::hf
