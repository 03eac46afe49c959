// api/optimizer/whole_tensors.cpp: see the header.
#include "api/optimizer/whole_tensors.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "api/rank/rank.h"
#include "smp/distributed_model.h"
#include "tp/group/slice_part.h"

namespace smp {

WholeTensors::WholeTensors(const Rank& rank, const DistributedModelBase& model)
    : rank_(rank),
      slices_(model.base_module()),
      any_(rank.topology().tp_size() > 1 && !slices_.empty()) {}

std::vector<std::int64_t> WholeTensors::sizes(const at::Tensor& parameter) const {
  auto sizes = parameter.sizes().vec();
  const auto slice = slices_.find(parameter);
  if (any_ && slice) sizes[static_cast<std::size_t>(slice->dim)] = slice->whole;
  return sizes;
}

std::vector<checkpoints::NamedTensor> WholeTensors::shapes(
    std::vector<checkpoints::NamedTensor> tensors) const {
  for (auto& [tensor, names] : tensors) {
    if (!any_ || !slices_.contain(tensor)) continue;
    tensor = at::empty(sizes(tensor), at::TensorOptions(at::kMeta).dtype(tensor.scalar_type()));
  }
  return tensors;
}

at::Tensor WholeTensors::joined(const at::Tensor& parameter, const at::Tensor& values) const {
  const auto slice = slices_.find(parameter);
  if (!any_ || !slice) return values;
  const at::NoGradGuard no_grad;
  const auto own = values.detach().movedim(slice->dim, 0).contiguous();
  const auto all = rank_.groups().slice_holders().all_gather(own);
  return all.narrow(0, 0, slice->whole).movedim(0, slice->dim).contiguous();
}

at::Tensor WholeTensors::own_part(const at::Tensor& parameter, const at::Tensor& whole) const {
  const auto slice = slices_.find(parameter);
  if (!any_ || !slice) return whole;
  return tp::part_of(whole, slice->dim, parameter.size(slice->dim), rank_.topology().tp_rank());
}

}  // namespace smp
