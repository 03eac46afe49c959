// dp/gradient_reducer.cpp: see the header.
#include "dp/gradient_reducer.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <utility>

#include "base/check.h"
#include "dp/bucket_plan.h"
#include "dp/flat_tensors.h"

namespace smp::dp {
namespace {

std::vector<std::vector<std::size_t>> buckets_of(const std::vector<at::Tensor>& parameters,
                                                 std::int64_t bucket_bytes) {
  std::vector<TensorSize> sizes;
  for (const auto& parameter : parameters) {
    sizes.push_back({parameter.scalar_type(), static_cast<std::int64_t>(parameter.nbytes())});
  }
  return plan_buckets(sizes, bucket_bytes);
}

/// The gradient as a dense tensor of its own, made where there is none.
at::Tensor dense_gradient(const at::Tensor& parameter) {
  auto& gradient = at::Tensor(parameter).mutable_grad();
  if (!gradient.defined()) gradient = at::zeros_like(parameter);
  if (gradient.is_sparse()) gradient = gradient.to_dense();
  return gradient;
}

}  // namespace

GradientReducer::GradientReducer(d2d::Communicator replicas, std::vector<at::Tensor> parameters,
                                 std::int64_t bucket_bytes, int divisor)
    : replicas_(std::move(replicas)),
      parameters_(std::move(parameters)),
      buckets_(buckets_of(parameters_, bucket_bytes)),
      divisor_(divisor > 0 ? divisor : replicas_.size()) {}

GradientReducer::Forms GradientReducer::forms() const {
  Forms forms;
  for (const auto& parameter : parameters_) {
    const auto& gradient = parameter.grad();
    const auto form = !gradient.defined()    ? Form::kNone
                      : gradient.is_sparse() ? Form::kSparse
                                             : Form::kDense;
    forms.push_back(static_cast<char>(form));
  }
  return forms;
}

/// Dense if it is so anywhere: a sparse gradient can become dense, but not the other way.
GradientReducer::Form GradientReducer::common_form(const std::vector<Forms>& forms,
                                                   std::size_t parameter) const {
  auto common = Form::kNone;
  for (const auto& own : forms) {
    const Form form{own.at(parameter)};
    if (form == Form::kDense) return form;
    if (form == Form::kSparse) common = form;
  }
  return common;
}

void GradientReducer::reduce(const std::vector<Forms>& forms) {
  const at::NoGradGuard no_grad;
  for (const auto& bucket : buckets_) {
    std::vector<std::size_t> dense;
    for (const auto parameter : bucket) {
      const auto form = common_form(forms, parameter);
      if (form == Form::kSparse) reduce_sparse(parameter);
      if (form == Form::kDense) dense.push_back(parameter);
    }
    if (!dense.empty()) reduce_dense(dense);
  }
}

void GradientReducer::reduce_dense(const std::vector<std::size_t>& bucket) {
  std::vector<at::Tensor> gradients;
  for (const auto parameter : bucket) gradients.push_back(dense_gradient(parameters_[parameter]));
  auto sum = replicas_.all_reduce(flattened(gradients));
  unflatten_into(gradients, sum.div_(divisor_));
}

/// Rows travel, not the table: a replica's batch touches few of them.
void GradientReducer::reduce_sparse(std::size_t parameter) {
  auto& gradient = at::Tensor(parameters_[parameter]).mutable_grad();
  d2d::Payload own;
  if (gradient.defined()) {
    const auto rows = gradient.coalesce();
    own.tensors = {rows.indices(), rows.values()};
  }
  at::Tensor sum;
  for (const auto& part : replicas_.all_gather(std::move(own), "a sparse gradient")) {
    if (part.tensors.empty()) continue;
    const auto rows = at::_sparse_coo_tensor_unsafe(part.tensors.at(0), part.tensors.at(1),
                                                    parameters_[parameter].sizes());
    sum = sum.defined() ? (sum + rows).coalesce() : rows._coalesced_(true).clone();
  }
  SMP_ASSERT(sum.defined(), "a sparse gradient that no replica has");
  gradient = sum.div_(divisor_);
}

}  // namespace smp::dp
