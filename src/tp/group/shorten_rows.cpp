// tp/group/shorten_rows.cpp: see the header.
#include "tp/group/shorten_rows.h"

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <torch/library.h>

#include <cmath>

#include "smp/tp/primitives.h"
#include "tp/group/tensor_parallel.h"

namespace smp::tp {
namespace {

constexpr double kTiny = 1e-7;  // LibTorch adds it to norms that it divides by

at::Tensor own_lengths(const at::Tensor& slice, const at::Tensor& rows, double norm_type) {
  return lengths_of_parts(at::embedding(slice, rows), norm_type);  // a look-up, which nobody minds
}

void scale_own_rows(at::Tensor& slice, const at::Tensor& rows, const at::Tensor& scales, double,
                    double) {
  slice.index_copy_(0, rows, at::embedding(slice, rows) * scales.unsqueeze(1));
}

/// Norms of whole rows, of the shares [T, n] of all ranks.
at::Tensor joined(const at::Tensor& all, double norm_type) {
  if (std::isinf(norm_type)) return norm_type > 0 ? all.amax(0) : all.amin(0);
  const auto sum = all.sum(0);
  return norm_type == 0 ? sum : sum.pow(1 / norm_type);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(smp_tp, library) {
  library.def("row_lengths(Tensor slice, Tensor rows, float norm_type) -> Tensor", &own_lengths);
  library.def(
      "scale_rows_(Tensor(a!) slice, Tensor rows, Tensor scales, float max_norm, float norm_type) "
      "-> ()",
      &scale_own_rows);
}

at::Tensor lengths_of_parts(const at::Tensor& parts, double norm_type) {
  const auto wide = parts.to(at::kDouble);  // so that it does not matter how many ranks there are
  if (std::isinf(norm_type)) return wide.norm(norm_type, 1);
  return norm_type == 0 ? wide.ne(0).sum(1).to(at::kDouble) : wide.abs().pow(norm_type).sum(1);
}

at::Tensor row_lengths(const at::Tensor& slice, const at::Tensor& rows, double norm_type) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("smp_tp::row_lengths", "")
                             .typed<at::Tensor(const at::Tensor&, const at::Tensor&, double)>();
  return op.call(slice, rows, norm_type);
}

void scale_rows(at::Tensor& slice, const at::Tensor& rows, const at::Tensor& scales,
                double max_norm, double norm_type) {
  static const auto op =
      c10::Dispatcher::singleton()
          .findSchemaOrThrow("smp_tp::scale_rows_", "")
          .typed<void(at::Tensor&, const at::Tensor&, const at::Tensor&, double, double)>();
  op.call(slice, rows, scales, max_norm, norm_type);
}

void shorten_rows(at::Tensor& slice, const at::Tensor& indices, double max_norm, double norm_type) {
  const at::NoGradGuard no_grad;
  if (TensorParallel::current().size() == 1) {
    at::embedding_renorm_(slice, indices, max_norm, norm_type);
    return;
  }
  const auto rows = std::get<0>(at::_unique(indices.reshape(-1).to(at::kLong)));
  const auto own = row_lengths(slice, rows, norm_type);
  const auto norms = joined(fused_allgather_for_tp(own.unsqueeze(0), 0), norm_type)
                         .to(slice.scalar_type())
                         .to(at::kDouble);
  const auto too_long = norms.gt(max_norm).nonzero().squeeze(1);
  if (too_long.numel() == 0) return;
  const auto scales = max_norm / (norms.index_select(0, too_long) + kTiny);
  scale_rows(slice, rows.index_select(0, too_long), scales.to(slice.scalar_type()), max_norm,
             norm_type);
}

}  // namespace smp::tp
