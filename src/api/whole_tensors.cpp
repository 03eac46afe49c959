// api/whole_tensors.cpp: see the header.
#include "api/whole_tensors.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "api/runtime.h"
#include "smp/distributed_model.h"

namespace smp {

WholeTensors::WholeTensors(Runtime& runtime, const DistributedModelBase& model)
    : runtime_(runtime),
      slices_(model.base_module()),
      any_(runtime.topology().tp_size() > 1 && !slices_.empty()) {}

std::vector<std::int64_t> WholeTensors::sizes(const at::Tensor& parameter) const {
  auto sizes = parameter.sizes().vec();
  const auto dim = slices_.dim_of(parameter);
  if (any_ && dim) sizes[static_cast<std::size_t>(*dim)] *= runtime_.topology().tp_size();
  return sizes;
}

std::vector<checkpoint::NamedTensor> WholeTensors::shapes(
    std::vector<checkpoint::NamedTensor> tensors) const {
  for (auto& [tensor, names] : tensors) {
    if (!any_ || !slices_.contain(tensor)) continue;
    tensor = at::empty(sizes(tensor), at::TensorOptions(at::kMeta).dtype(tensor.scalar_type()));
  }
  return tensors;
}

at::Tensor WholeTensors::joined(const at::Tensor& parameter, const at::Tensor& values) const {
  const auto dim = slices_.dim_of(parameter);
  if (!any_ || !dim) return values;
  const at::NoGradGuard no_grad;
  const auto own = values.detach().movedim(*dim, 0).contiguous();
  return runtime_.slice_holders().all_gather(own).movedim(0, *dim).contiguous();
}

at::Tensor WholeTensors::own_part(const at::Tensor& parameter, const at::Tensor& whole) const {
  const auto dim = slices_.dim_of(parameter);
  if (!any_ || !dim) return whole;
  const auto size = parameter.size(*dim);
  return whole.narrow(*dim, runtime_.topology().tp_rank() * size, size);
}

}  // namespace smp
