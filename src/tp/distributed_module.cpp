// tp/distributed_module.cpp: see the header.
#include "smp/tp/distributed_module.h"

#include <ATen/ATen.h>
#include <ATen/WrapDimUtils.h>
#include <xxhash.h>

#include <utility>

#include "base/check.h"
#include "tp/slice_part.h"
#include "tp/tensor_parallel.h"

namespace smp {
namespace {

std::uint64_t hash_of_values(const at::Tensor& tensor) {
  if (tensor.is_meta() || tensor.layout() != at::kStrided) return 0;
  const auto values = tensor.detach().cpu().contiguous();
  return XXH3_64bits(values.const_data_ptr(), values.nbytes());
}

}  // namespace

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

std::uint64_t DistributedModule::origin(const std::string& name) const {
  const auto found = origins_.find(name);
  if (found == origins_.end()) return 0;
  const auto own = named_parameters(/*recurse=*/false);
  return own[name]._version() == found->second.version ? found->second.hash : 0;
}

at::Tensor& DistributedModule::register_cut(const std::string& name, at::Tensor slice,
                                            const at::Tensor& whole, std::int64_t dim,
                                            bool requires_grad) {
  dim = at::maybe_wrap_dim(dim, whole.dim());
  sliced_.emplace(name, ParameterSlice{dim, whole.size(dim)});
  auto& registered = register_parameter(name, std::move(slice), requires_grad);
  origins_.emplace(name, Origin{hash_of_values(whole), registered._version()});
  return registered;
}

at::Tensor& DistributedModule::register_slice(const std::string& name, const at::Tensor& whole,
                                              std::int64_t dim, bool requires_grad) {
  return register_cut(name, slice_of(name, whole, dim), whole, dim, requires_grad);
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
  return register_cut(name, tp::part_of(whole, dim, units * unit, own.rank()), whole, dim, true);
}

at::Tensor& DistributedModule::adopt_slice(const std::string& name, const at::Tensor& whole,
                                           std::int64_t dim) {
  const auto values = whole.detach();
  whole.set_data(slice_of(name, whole, dim));
  return register_cut(name, whole, values, dim, whole.requires_grad());
}

at::Tensor& DistributedModule::adopt(const std::string& name, const at::Tensor& whole) {
  return register_parameter(name, whole, whole.defined() && whole.requires_grad());
}

}  // namespace smp
