// tp/layers/distributed_layer_norm.cpp: see the header.
#include "smp/tp/distributed_layer_norm.h"

#include <ATen/ATen.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <ostream>

#include "base/check.h"
#include "smp/tp/batch_primitives.h"
#include "tp/group/batch_of_one.h"
#include "tp/group/tensor_parallel.h"
#include "tp/slices/sliced_norm.h"

namespace smp::nn {
namespace {

/// Returns the first dimension of `shape` that `ranks` ranks can share, or nothing.
std::optional<std::int64_t> dim_to_slice(const std::vector<std::int64_t>& shape, int ranks) {
  const auto found = std::find_if(shape.begin(), shape.end(),
                                  [ranks](std::int64_t size) { return size % ranks == 0; });
  if (found == shape.end()) return std::nullopt;
  return found - shape.begin();
}

std::string cannot_be_divided(const std::vector<std::int64_t>& shape, int ranks) {
  return shape.size() == 1 ? base::concat("its size ", shape[0], " cannot be divided by ", ranks)
                           : base::concat("none of its dimensions ", at::IntArrayRef(shape),
                                          " can be divided by ", ranks);
}

/// Returns "[.., 4, 6]".
std::string rows_of(const std::vector<std::int64_t>& shape) {
  std::string text = "[..";
  for (const auto size : shape) text += base::concat(", ", size);
  return text + "]";
}

/// True if the last dimensions of `tensor` are `shape`.
bool has_rows(const at::Tensor& tensor, at::IntArrayRef shape) {
  const auto dims = static_cast<std::int64_t>(shape.size());
  return tensor.dim() >= dims && tensor.sizes().slice(tensor.dim() - dims) == shape;
}

/// Checks what torch::nn::LayerNorm asks of the types: floating-point numbers, and parameters of
/// the same type, or of float32 beside halves.
void require_types(const at::Tensor& input, const at::Tensor& weight) {
  const auto dtype = input.scalar_type();
  SMP_REQUIRE(at::isFloatingType(dtype), "DistributedLayerNorm: input of type ", dtype,
              "; expected floating-point numbers");
  if (!weight.defined() || weight.scalar_type() == dtype) return;
  SMP_REQUIRE(at::isReducedFloatingType(dtype) && weight.scalar_type() == at::kFloat,
              "DistributedLayerNorm: input of type ", dtype, ", weight of type ",
              weight.scalar_type(), "; convert one of them");
}

}  // namespace

DistributedLayerNormImpl::DistributedLayerNormImpl(const torch::nn::LayerNormOptions& with)
    : options(with), sliced_dim_(sliced_dim(options.normalized_shape())) {
  if (!options.elementwise_affine()) {
    weight = register_parameter("weight", at::Tensor(), false);
    bias = register_parameter("bias", at::Tensor(), false);
    return;
  }
  weight = register_slice("weight", at::ones(options.normalized_shape()), sliced_dim_);
  bias = register_slice("bias", at::zeros(options.normalized_shape()), sliced_dim_);
}

DistributedLayerNormImpl::DistributedLayerNormImpl(torch::nn::LayerNormImpl& original)
    : options(original.options), sliced_dim_(sliced_dim(options.normalized_shape())) {
  if (!options.elementwise_affine()) return;
  weight = adopt_slice("weight", original.weight, sliced_dim_);
  bias = adopt_slice("bias", original.bias, sliced_dim_);
}

std::int64_t DistributedLayerNormImpl::sliced_dim(const std::vector<std::int64_t>& shape) {
  const auto ranks = tp::TensorParallel::current().size();
  SMP_REQUIRE(!shape.empty(), "DistributedLayerNorm: normalized_shape has no dimension");
  const auto dim = dim_to_slice(shape, ranks);
  SMP_REQUIRE(dim, "DistributedLayerNorm of ", at::IntArrayRef(shape), " for ", ranks,
              " tensor-parallel ranks: ", cannot_be_divided(shape, ranks),
              "; choose a size that can, or another tensor_parallel_degree");
  return *dim;
}

std::string DistributedLayerNormImpl::obstacle(const torch::nn::LayerNormImpl& original,
                                               int ranks) {
  const auto& shape = original.options.normalized_shape();
  return dim_to_slice(shape, ranks) ? std::string() : cannot_be_divided(shape, ranks);
}

at::Tensor DistributedLayerNormImpl::forward(const at::Tensor& input) {
  const auto& shape = options.normalized_shape();
  SMP_REQUIRE(has_rows(input, shape), "DistributedLayerNorm: input is ", input.sizes(),
              ", expected ", rows_of(shape), "; check normalized_shape");
  require_types(input, weight);
  const auto dims = std::ssize(shape);
  return tp::of_batch(input, dims, [&](const at::Tensor& batch) {
    const auto dim = sliced_dim_ - dims;
    const auto slices = slices_of_batch_for_tp(batch, dim);
    return batch_of_slices_for_tp(DistributedLayerNormImpl::normalize_slices(slices), dim);
  });
}

at::Tensor DistributedLayerNormImpl::normalize_slices(const at::Tensor& slices) {
  auto shape = options.normalized_shape();
  const auto size = c10::multiply_integers(shape);
  shape[static_cast<std::size_t>(sliced_dim_)] /= tp::TensorParallel::current().size();
  SMP_REQUIRE(has_rows(slices, shape), "DistributedLayerNorm: slices are ", slices.sizes(),
              ", expected ", rows_of(shape), ", a rank's part of ",
              at::IntArrayRef(options.normalized_shape()));
  require_types(slices, weight);
  const auto dims = std::ssize(shape);
  const auto flat = [](const at::Tensor& parameter) {
    return parameter.defined() ? parameter.flatten() : parameter;
  };
  const auto rows =
      tp::normalized_slices(slices.flatten(-dims), flat(weight), flat(bias), options.eps(), size);
  return dims == 1 ? rows : rows.unflatten(-1, shape);
}

void DistributedLayerNormImpl::pretty_print(std::ostream& stream) const {
  stream << "smp::nn::DistributedLayerNorm(" << at::IntArrayRef(options.normalized_shape())
         << ", eps=" << options.eps() << ", elementwise_affine=" << std::boolalpha
         << options.elementwise_affine() << ")";
}

}  // namespace smp::nn
