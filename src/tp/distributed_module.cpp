// tp/distributed_module.cpp: see the header.
#include "smp/tp/distributed_module.h"

#include <ATen/ATen.h>
#include <ATen/WrapDimUtils.h>

#include "base/check.h"
#include "tp/slice_part.h"
#include "tp/tensor_parallel.h"

namespace smp {

DistributedModule::~DistributedModule() = default;

std::optional<std::int64_t> DistributedModule::slice_dim(const std::string& name) const {
  const auto found = sliced_.find(name);
  return found == sliced_.end() ? std::nullopt : std::optional(found->second.dim);
}

at::Tensor DistributedModule::slice_of(const std::string& name, const at::Tensor& whole,
                                       std::int64_t dim) const {
  const auto& own = tp::TensorParallel::current();
  SMP_REQUIRE(whole.defined() && whole.dim() > 0, this->name(), ": slice '", name,
              "' of a tensor without dimensions");
  dim = at::maybe_wrap_dim(dim, whole.dim());
  SMP_REQUIRE(whole.size(dim) % own.size() == 0, this->name(), ": parameter '", name, "', shape ",
              whole.sizes(), ", cannot be sliced along dimension ", dim, " for ", own.size(),
              " tensor-parallel ranks: ", whole.size(dim), " cannot be divided by ", own.size(),
              "; choose a size that can, or another tensor_parallel_degree");
  return tp::part_of(whole, dim, whole.size(dim) / own.size(), own.rank());
}

void DistributedModule::note_slice(const std::string& name, const at::Tensor& whole,
                                   std::int64_t dim) {
  dim = at::maybe_wrap_dim(dim, whole.dim());
  sliced_.emplace(name, ParameterSlice{dim, whole.size(dim)});
}

at::Tensor& DistributedModule::register_slice(const std::string& name, const at::Tensor& whole,
                                              std::int64_t dim, bool requires_grad) {
  auto& registered = register_parameter(name, slice_of(name, whole, dim), requires_grad);
  note_slice(name, whole, dim);
  return registered;
}

at::Tensor& DistributedModule::register_padded_slice(const std::string& name,
                                                     const at::Tensor& whole, std::int64_t dim,
                                                     std::int64_t unit) {
  const auto& own = tp::TensorParallel::current();
  SMP_REQUIRE(unit > 0 && whole.defined() && whole.dim() > 0 && whole.size(dim) % unit == 0,
              this->name(), ": parameter '", name, "', shape ",
              whole.defined() ? whole.sizes() : at::IntArrayRef(),
              ", cannot be cut along dimension ", dim, " between units of ", unit,
              " elements; choose a size that consists of them");
  const auto units = (whole.size(dim) / unit + own.size() - 1) / own.size();
  auto& registered = register_parameter(name, tp::part_of(whole, dim, units * unit, own.rank()));
  note_slice(name, whole, dim);
  return registered;
}

at::Tensor& DistributedModule::adopt_slice(const std::string& name, const at::Tensor& whole,
                                           std::int64_t dim) {
  note_slice(name, whole, dim);
  whole.set_data(slice_of(name, whole, dim));
  return register_parameter(name, whole, whole.requires_grad());
}

at::Tensor& DistributedModule::adopt(const std::string& name, const at::Tensor& whole) {
  return register_parameter(name, whole, whole.defined() && whole.requires_grad());
}

}  // namespace smp
