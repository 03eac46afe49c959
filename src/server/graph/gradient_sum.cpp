// server/graph/gradient_sum.cpp: what torch::autograd::InputBuffer::add does, without its streams.
#include "server/graph/gradient_sum.h"

#include <ATen/CachedTensorUtils.h>
#include <ATen/TensorSubclassLikeUtils.h>
#include <c10/core/GradMode.h>

#include <utility>

namespace smp::server {
namespace {

bool is_sparse(const at::Tensor& tensor) { return tensor.is_sparse() || tensor.is_sparse_csr(); }

/// True if nobody else holds `tensor` or its storage, and its layout suits an in-place addition.
bool may_reuse(const at::Tensor& tensor) {
  return !(at::isTensorSubclassLike(tensor) || tensor._is_zerotensor() || tensor.is_nested()) &&
         tensor.is_non_overlapping_and_dense() && at::caching::adjusted_use_count(tensor) == 1 &&
         tensor.has_storage() && tensor.storage().use_count() == 1;
}

}  // namespace

void add_gradient(at::Tensor& sum, at::Tensor&& gradient) {
  if (!gradient.defined()) return;
  if (!sum.defined()) {
    sum = std::move(gradient);
  } else if (c10::GradMode::is_enabled()) {
    sum = sum + gradient;
  } else if (is_sparse(sum)) {
    // Dense + sparse keeps the dense operand first: ATen has no sparse + dense.
    sum = may_reuse(gradient) ? gradient.add_(sum) : gradient + sum;
  } else if (may_reuse(sum) && !at::isTensorSubclassLike(gradient)) {
    sum.add_(gradient);
  } else {
    sum = sum + gradient;
  }
}

}  // namespace smp::server
