// dp/gradient_reducer.cpp: see the header.
#include "dp/gradient_reducer.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <deque>
#include <utility>

#include "base/check.h"
#include "d2d/sum_in_place.h"
#include "dp/bucket_plan.h"
#include "dp/flat_tensors.h"

namespace smp::dp {
namespace {

std::vector<TensorSize> sizes_of(const std::vector<at::Tensor>& parameters) {
  std::vector<TensorSize> sizes;
  for (const auto& parameter : parameters) {
    sizes.push_back({parameter.scalar_type(), static_cast<std::int64_t>(parameter.nbytes())});
  }
  return sizes;
}

/// Of parameters that nobody owns.
std::vector<std::vector<std::size_t>> buckets_of(const std::vector<at::Tensor>& parameters,
                                                 const std::vector<int>& owners,
                                                 std::int64_t bucket_bytes) {
  std::vector<std::size_t> numbers;
  std::vector<at::Tensor> shared;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (!owners.empty() && owners[i] >= 0) continue;
    numbers.push_back(i);
    shared.push_back(parameters[i]);
  }
  auto buckets = plan_buckets(sizes_of(shared), bucket_bytes);
  for (auto& bucket : buckets) {
    for (auto& number : bucket) number = numbers[number];
  }
  return buckets;
}

std::vector<ShardRound> rounds_of(const std::vector<at::Tensor>& parameters,
                                  const std::vector<int>& owners, int replicas,
                                  std::int64_t bucket_bytes) {
  if (owners.empty()) return {};
  return plan_rounds(sizes_of(parameters), owners, replicas, bucket_bytes);
}

/// The gradient as a dense tensor of its own, made where there is none.
at::Tensor dense_gradient(const at::Tensor& parameter) {
  auto& gradient = at::Tensor(parameter).mutable_grad();
  if (!gradient.defined()) gradient = at::zeros_like(parameter);
  if (gradient.is_sparse()) gradient = gradient.to_dense();
  return gradient;
}

/// The mean of some gradients, in their place where their elements lie one after another.
class BucketMean {
 public:
  BucketMean(const d2d::Communicator& replicas, std::vector<at::Tensor> gradients, int divisor)
      : gradients_(std::move(gradients)),
        rows_(in_rows(gradients_)),
        sum_(replicas, rows_, divisor) {}
  void add() { sum_.add(); }
  void finish() {
    sum_.finish();
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      if (!rows_[i].is_same(gradients_[i])) gradients_[i].copy_(rows_[i]);
    }
  }

 private:
  static std::vector<at::Tensor> in_rows(const std::vector<at::Tensor>& gradients) {
    std::vector<at::Tensor> rows;
    for (const auto& gradient : gradients) rows.push_back(gradient.contiguous());
    return rows;
  }

  std::vector<at::Tensor> gradients_, rows_;
  d2d::SumInPlace sum_;
};

}  // namespace

GradientReducer::GradientReducer(d2d::Communicator replicas, std::vector<at::Tensor> parameters,
                                 std::int64_t bucket_bytes, int divisor, std::vector<int> owners)
    : replicas_(std::move(replicas)),
      parameters_(std::move(parameters)),
      owners_(std::move(owners)),
      buckets_(buckets_of(parameters_, owners_, bucket_bytes)),
      rounds_(rounds_of(parameters_, owners_, replicas_.size(), bucket_bytes)),
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
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (common_form(forms, i) == Form::kSparse) reduce_sparse(i);
  }
  reduce_everywhere(forms);
  for (const auto& round : rounds_) {
    ShardRound dense{round.dtype, {}};
    for (const auto& of_owner : round.of_owner) {
      dense.of_owner.push_back(dense_ones(of_owner, forms));
    }
    reduce_to_owners(dense);
  }
  drop_what_others_own();
}

std::vector<std::size_t> GradientReducer::dense_ones(const std::vector<std::size_t>& bucket,
                                                     const std::vector<Forms>& forms) const {
  std::vector<std::size_t> dense;
  for (const auto parameter : bucket) {
    if (common_form(forms, parameter) == Form::kDense) dense.push_back(parameter);
  }
  return dense;
}

std::vector<at::Tensor> GradientReducer::dense_gradients(
    const std::vector<std::size_t>& parameters) const {
  std::vector<at::Tensor> gradients;
  for (const auto parameter : parameters) {
    gradients.push_back(dense_gradient(parameters_[parameter]));
  }
  return gradients;
}

/// While the sums of one bucket travel, so do the parts of the next two; more at once would take
/// memory for what comes from others.
void GradientReducer::reduce_everywhere(const std::vector<Forms>& forms) {
  std::deque<BucketMean> under_way;
  for (const auto& bucket : buckets_) {
    const auto dense = dense_ones(bucket, forms);
    if (dense.empty()) continue;
    under_way.emplace_back(replicas_, dense_gradients(dense), divisor_);
    if (under_way.size() > 1) under_way[under_way.size() - 2].add();
    if (under_way.size() > 2) {
      under_way.front().finish();
      under_way.pop_front();
    }
  }
  if (!under_way.empty()) under_way.back().add();
  for (auto& bucket : under_way) bucket.finish();
}

void GradientReducer::reduce_to_owners(const ShardRound& round) {
  std::vector<at::Tensor> rows;
  bool any = false;
  for (const auto& of_owner : round.of_owner) {
    any |= !of_owner.empty();
    rows.push_back(flattened(dense_gradients(of_owner), round.dtype));
  }
  if (!any) return;
  auto sum = replicas_.reduce_scatter_rows(rows);
  const auto& own = round.of_owner[static_cast<std::size_t>(replicas_.rank())];
  if (!own.empty()) unflatten_into(dense_gradients(own), sum.div_(divisor_));
}

void GradientReducer::drop_what_others_own() const {
  for (std::size_t i = 0; i < owners_.size(); ++i) {
    if (owners_[i] < 0 || owners_[i] == replicas_.rank()) continue;
    at::Tensor(parameters_[i]).mutable_grad().reset();
  }
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
