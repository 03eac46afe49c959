// server/foreign_parameters.cpp: shrinking, and the two checks.
#include "server/foreign_parameters.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <limits>

#include "base/check.h"
#include "module/replace_data.h"

namespace smp::server {
namespace {

at::Tensor placeholder(const at::Tensor& like) {
  const double value =
      at::isFloatingType(like.scalar_type()) || at::isComplexType(like.scalar_type())
          ? std::numeric_limits<double>::quiet_NaN()
          : 0.0;
  const auto device = like.is_meta() ? at::Device(at::kCPU) : like.device();
  return at::full({}, value, like.options().device(device).requires_grad(false))
      .expand(like.sizes());
}

}  // namespace

void ForeignParameters::shrink(const std::string& path, at::Tensor& tensor, GlobalRank owner) {
  if (!tensor.defined() || entries_.count(tensor.unsafeGetTensorImpl()) != 0) return;
  at::NoGradGuard no_grad;
  freed_bytes_ += tensor.nbytes();
  module::replace_data(tensor, placeholder(tensor));
  entries_.emplace(tensor.unsafeGetTensorImpl(),
                   Entry{path, owner, tensor, static_cast<std::uint32_t>(tensor._version())});
}

void ForeignParameters::refuse_gradient(const at::Tensor& tensor) const {
  const auto found = entries_.find(tensor.unsafeGetTensorImpl());
  if (found == entries_.end()) return;
  const auto& entry = found->second;
  SMP_REQUIRE(false, "rank ", rank_, ": a gradient reached parameter ", entry.path,
              ", which lives on rank ", entry.owner,
              ": some code reads it directly instead of calling the module that owns it. Call the "
              "module (name the method in SMP_MODULE), or place both modules on one rank");
}

void ForeignParameters::check_untouched(const char* when) const {
  for (const auto& [id, entry] : entries_) {
    const auto& tensor = entry.tensor;
    const bool shrunk = tensor.numel() == 0 || tensor.storage().nbytes() <=
                                                   static_cast<std::size_t>(tensor.element_size());
    const bool same = static_cast<std::uint32_t>(tensor._version()) == entry.version;
    SMP_REQUIRE(shrunk && same, "rank ", rank_, ": ", when, ": ", entry.path,
                " was written on this rank but lives on rank ", entry.owner,
                "; the value would be lost. Change parameters before the first step, or only on "
                "their owner (model.local_parameters())");
  }
}

}  // namespace smp::server
