// api/state/master_weights.cpp: see the header.
#include "api/state/master_weights.h"

#include <utility>

namespace smp {

at::Tensor MasterWeights::of(const at::Tensor& parameter) const {
  const auto found = kept_.find(parameter.unsafeGetTensorImpl());
  return found == kept_.end() ? at::Tensor() : found->second.values;
}

void MasterWeights::set(const at::Tensor& parameter, at::Tensor values) {
  kept_.insert_or_assign(parameter.unsafeGetTensorImpl(),
                         Kept{Weak(parameter.getIntrusivePtr()), std::move(values)});
}

void MasterWeights::forget_gone() {
  std::erase_if(kept_, [](const auto& item) { return item.second.parameter.expired(); });
}

}  // namespace smp
