// tp/layers/distributed_module.cpp: see the header.
#include "smp/tp/distributed_module.h"

#include <ATen/ATen.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/core/grad_mode.h>
#include <xxhash.h>

#include <utility>

#include "base/check.h"
#include "module/whole_tensors.h"
#include "tp/group/slice_part.h"
#include "tp/group/tensor_parallel.h"
#include "tp/slices/drawn_slice.h"

namespace smp {
namespace {

std::uint64_t hash_of_values(const at::Tensor& tensor) {
  if (tensor.is_meta() || tensor.layout() != at::kStrided) return 0;
  const auto values = tensor.detach().cpu().contiguous();
  return XXH3_64bits(values.const_data_ptr(), values.nbytes());
}

/// Returns a hash of the numbers of a slice, which to(torch::kDouble) does not change.
std::uint64_t hash_of_numbers(const at::Tensor& slice) {
  const at::NoGradGuard no_grad;
  return hash_of_values(slice.is_floating_point() ? slice.detach().to(at::kDouble) : slice);
}

/// Returns how often `slice` was written; 0 if it was made in inference mode, where nobody counts.
std::int64_t version_of(const at::Tensor& slice) {
  return slice.is_inference() ? 0 : slice._version();
}

/// Returns `dim`, counted from 0. @throws UsageError  `whole` has no dimensions.
std::int64_t wrapped(const torch::nn::Module& module, const std::string& name,
                     const at::Tensor& whole, std::int64_t dim) {
  SMP_REQUIRE(whole.defined() && whole.dim() > 0, module.name(), ": slice '", name,
              "' of a tensor without dimensions");
  return at::maybe_wrap_dim(dim, whole.dim());
}

/// True if a parameter of `module` is cut: with one rank slices are whole.
bool has_cut_tensors(const torch::nn::Module& module) {
  const auto* distributed = dynamic_cast<const DistributedModule*>(&module);
  if (distributed == nullptr) return false;
  const auto parameters = module.named_parameters(/*recurse=*/false);
  for (const auto& [name, slice] : distributed->sliced()) {
    const auto* parameter = parameters.find(name);
    if (parameter != nullptr && parameter->size(slice.dim) != slice.whole) return true;
  }
  return false;
}

[[maybe_unused]] const bool told = [] {
  module::set_has_parts(&has_cut_tensors);
  return true;
}();

}  // namespace

DistributedModule::~DistributedModule() = default;

std::optional<std::int64_t> DistributedModule::slice_dim(const std::string& name) const {
  const auto found = sliced_.find(name);
  return found == sliced_.end() ? std::nullopt : std::optional(found->second.dim);
}

std::int64_t DistributedModule::slice_size(const std::string& name, at::IntArrayRef sizes,
                                           std::int64_t dim) const {
  const int ranks = tp::TensorParallel::current().size();
  SMP_REQUIRE(sizes[dim] % ranks == 0, this->name(), ": parameter '", name, "', shape ", sizes,
              ", cannot be sliced along dimension ", dim, " for ", ranks,
              " tensor-parallel ranks: ", sizes[dim], " cannot be divided by ", ranks,
              "; choose a size that can, or another tensor_parallel_degree");
  return sizes[dim] / ranks;
}

std::int64_t DistributedModule::padded_slice_size(const std::string& name, at::IntArrayRef sizes,
                                                  std::int64_t dim, std::int64_t unit) const {
  const int ranks = tp::TensorParallel::current().size();
  SMP_REQUIRE(unit > 0 && sizes[dim] % unit == 0, this->name(), ": parameter '", name, "', shape ",
              sizes, ", cannot be cut along dimension ", dim, " between units of ", unit,
              " elements; choose a size that consists of them");
  return (sizes[dim] / unit + ranks - 1) / ranks * unit;
}

at::Tensor DistributedModule::slice_of(const std::string& name, const at::Tensor& whole,
                                       std::int64_t dim) const {
  return tp::part_of(whole, dim, slice_size(name, whole.sizes(), dim),
                     tp::TensorParallel::current().rank());
}

std::uint64_t DistributedModule::origin(const std::string& name) const {
  const auto found = origins_.find(name);
  if (found == origins_.end()) return 0;
  const auto& [whole, slice, version] = found->second;
  const auto own = named_parameters(/*recurse=*/false)[name];
  return version_of(own) == version && hash_of_numbers(own) == slice ? whole : 0;
}

void DistributedModule::set_whole(const std::string& name, const at::Tensor& whole) {
  const auto found = sliced_.find(name);
  SMP_REQUIRE(found != sliced_.end(), this->name(), ": no slice has the name '", name, "'");
  const auto [dim, size_of_whole] = found->second;
  const auto slice = named_parameters(/*recurse=*/false)[name];
  auto sizes = slice.sizes().vec();
  sizes[static_cast<std::size_t>(dim)] = size_of_whole;
  SMP_REQUIRE(whole.defined() && whole.sizes() == at::IntArrayRef(sizes), this->name(),
              ": value for parameter '", name, "' is ",
              whole.defined() ? base::concat(whole.sizes()) : "undefined", ", expected the whole, ",
              at::IntArrayRef(sizes));
  slice.set_data(tp::part_of(whole, dim, slice.size(dim), tp::TensorParallel::current().rank()));
  origins_[name] = {hash_of_values(whole), hash_of_numbers(slice), version_of(slice)};
}

at::Tensor& DistributedModule::register_cut(const std::string& name, at::Tensor slice,
                                            std::uint64_t hash_of_whole, const ParameterSlice& of,
                                            bool requires_grad) {
  sliced_.emplace(name, of);
  auto& registered = register_parameter(name, std::move(slice), requires_grad);
  origins_.emplace(name,
                   Origin{hash_of_whole, hash_of_numbers(registered), version_of(registered)});
  return registered;
}

at::Tensor& DistributedModule::register_slice(const std::string& name, const at::Tensor& whole,
                                              std::int64_t dim, bool requires_grad) {
  dim = wrapped(*this, name, whole, dim);
  return register_cut(name, slice_of(name, whole, dim), hash_of_values(whole),
                      {dim, whole.size(dim)}, requires_grad);
}

at::Tensor& DistributedModule::register_padded_slice(const std::string& name,
                                                     const at::Tensor& whole, std::int64_t dim,
                                                     std::int64_t unit) {
  dim = wrapped(*this, name, whole, dim);
  const auto size = padded_slice_size(name, whole.sizes(), dim, unit);
  return register_cut(name, tp::part_of(whole, dim, size, tp::TensorParallel::current().rank()),
                      hash_of_values(whole), {dim, whole.size(dim)}, true);
}

at::Tensor& DistributedModule::register_drawn_slice(const std::string& name, at::IntArrayRef sizes,
                                                    std::int64_t dim, const FillRows& fill,
                                                    std::int64_t unit) {
  SMP_REQUIRE(!sizes.empty(), this->name(), ": slice '", name, "' of a tensor without dimensions");
  dim = at::maybe_wrap_dim(dim, static_cast<std::int64_t>(sizes.size()));
  const auto size =
      unit == 0 ? slice_size(name, sizes, dim) : padded_slice_size(name, sizes, dim, unit);
  auto drawn = tp::draw_slice(sizes, dim, size, tp::TensorParallel::current().rank(), fill);
  return register_cut(name, std::move(drawn.slice), drawn.hash, {dim, sizes[dim]}, true);
}

at::Tensor& DistributedModule::adopt_slice(const std::string& name, const at::Tensor& whole,
                                           std::int64_t dim) {
  dim = wrapped(*this, name, whole, dim);
  const auto values = whole.detach();
  whole.set_data(slice_of(name, whole, dim));
  return register_cut(name, whole, hash_of_values(values), {dim, values.size(dim)},
                      whole.requires_grad());
}

at::Tensor& DistributedModule::adopt(const std::string& name, const at::Tensor& whole) {
  return register_parameter(name, whole, whole.defined() && whole.requires_grad());
}

}  // namespace smp
