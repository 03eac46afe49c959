// dp/gradient_reducer.cpp: see the header.
#include "dp/gradient_reducer.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <deque>
#include <utility>

#include "base/check.h"
#include "d2d/collectives/sum_aside.h"
#include "d2d/collectives/sum_in_place.h"
#include "dp/bucket_codec.h"
#include "dp/bucket_plan.h"
#include "dp/bucket_rows.h"
#include "dp/shard_plan.h"

namespace smp::dp {
namespace {

using Buckets = std::vector<std::vector<std::size_t>>;

/// Returns the buckets of the parameters that have an owner (`owned`), or of the others, in the
/// order in which backward comes to them.
Buckets buckets_of(const std::vector<at::Tensor>& parameters, const std::vector<int>& owners,
                   bool owned, std::int64_t bucket_bytes) {
  std::vector<std::size_t> numbers;
  std::vector<at::Tensor> chosen;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (owned != (!owners.empty() && owners[i] >= 0)) continue;
    numbers.push_back(i);
    chosen.push_back(parameters[i]);
  }
  auto buckets = plan_buckets(sizes_of(chosen), bucket_bytes);
  for (auto& bucket : buckets) {
    for (auto& number : bucket) number = numbers[number];
  }
  return buckets;
}

Buckets joined(Buckets first, const Buckets& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

/// The gradient as a dense tensor of its own, made where there is none.
at::Tensor dense_gradient(const at::Tensor& parameter) {
  auto& gradient = at::Tensor(parameter).mutable_grad();
  if (!gradient.defined()) gradient = at::zeros_like(parameter);
  if (gradient.is_sparse()) gradient = gradient.to_dense();
  return gradient;
}

/// Averages some gradients, in place where their elements are contiguous.
class BucketMean {
 public:
  BucketMean(const d2d::Communicator& replicas, std::vector<at::Tensor> gradients,
             std::vector<int> owners, int divisor)
      : rows_(std::move(gradients), std::move(owners)),
        sum_(replicas, rows_.parts(replicas.size()), divisor) {}
  void add() { sum_.add(); }
  void finish() {
    sum_.finish();
    rows_.write_back();
  }

 private:
  BucketRows rows_;
  d2d::SumInPlace sum_;
};

/// Does the same for gradients that a communication hook compresses.
class HookedMean {
 public:
  HookedMean(const d2d::Communicator& lane, std::uint64_t number, CommHook& hook,
             std::int64_t bucket, std::vector<at::Tensor> gradients, int divisor)
      : rows_(std::move(gradients)),
        codec_(hook, bucket),
        sum_(lane, rows_.rows(), divisor, number, &codec_) {}
  void add() { sum_.add(); }
  void finish() {
    sum_.write();
    rows_.write_back();
  }

 private:
  BucketRows rows_;
  BucketCodec codec_;
  d2d::SumAside sum_;
};

}  // namespace

GradientReducer::GradientReducer(d2d::Communicator replicas, std::vector<at::Tensor> parameters,
                                 std::int64_t bucket_bytes, std::uint64_t first_lane, int divisor,
                                 std::vector<int> owners)
    : replicas_(std::move(replicas)),
      parameters_(std::move(parameters)),
      owners_(std::move(owners)),
      buckets_(joined(buckets_of(parameters_, owners_, false, bucket_bytes),
                      buckets_of(parameters_, owners_, true, bucket_bytes))),
      first_lane_(first_lane),
      divisor_(divisor > 0 ? divisor : replicas_.size()),
      early_(replicas_, parameters_, owners_, buckets_, first_lane, divisor_) {}

void GradientReducer::set_hook(std::shared_ptr<CommHook> hook, std::int64_t first_bucket) {
  const auto is_owned = [](int owner) { return owner >= 0; };
  SMP_ASSERT(!hook || std::none_of(owners_.begin(), owners_.end(), is_owned),
             "a communication hook of gradients that are summed up for owners");
  hook_ = std::move(hook);
  first_bucket_ = first_bucket;
}

/// Does nothing for a hook whose results depend on the order of calls, since a sum in vain could
/// not be repeated, or with one replica, where nothing travels. With a hook a bucket begins early
/// only as a whole, since hooks are shown whole buckets.
void GradientReducer::begin_step(std::uint64_t number, fiber::Event& news) {
  if (replicas_.size() == 1 || (hook_ && !hook_->is_pure())) return;
  std::vector<std::vector<std::size_t>> expected(buckets_.size());
  for (std::size_t i = 0; i < buckets_.size() && !expected_.empty(); ++i) {
    if (is_expected(buckets_[i])) expected[i] = dense_ones(buckets_[i], expected_);
    if (hook_ && expected[i].size() < buckets_[i].size()) expected[i].clear();
  }
  early_.begin_step(number, std::move(expected), news, {hook_.get(), first_bucket_});
}

/// True if all replicas had the same gradients of `bucket` in the last step, and no sparse ones.
bool GradientReducer::is_expected(const std::vector<std::size_t>& bucket) const {
  return std::all_of(bucket.begin(), bucket.end(), [this](std::size_t parameter) {
    const auto form = expected_[0].at(parameter);
    return form != static_cast<char>(Form::kSparse) &&
           std::all_of(expected_.begin(), expected_.end(),
                       [&](const auto& own) { return own.at(parameter) == form; });
  });
}

/// Finishes the buckets that all replicas have begun with the gradients that there are now, and
/// returns which those are.
std::vector<bool> GradientReducer::finish_early(const std::vector<Report>& reports) {
  std::vector<bool> done;
  for (std::size_t i = 0; i < buckets_.size(); ++i) {
    const bool as_sent = std::none_of(buckets_[i].begin(), buckets_[i].end(),
                                      [&](auto parameter) { return is_term(reports, parameter); });
    done.push_back(as_sent && std::all_of(reports.begin(), reports.end(), [&](const auto& report) {
                     return report.early.at(i) == '+' &&
                            std::all_of(
                                buckets_[i].begin(), buckets_[i].end(), [&](std::size_t parameter) {
                                  return report.forms.at(parameter) == expected_[0].at(parameter);
                                });
                   }));
  }
  early_.finish(done);
  averaged_early_ += static_cast<std::uint64_t>(std::count(done.begin(), done.end(), true));
  return done;
}

bool GradientReducer::is_term(const std::vector<Report>& reports, std::size_t parameter) const {
  if (owners_.empty() || owners_[parameter] < 0) return false;
  const auto given = [&](const Report& report) {
    return report.given.empty() ? Given::kNothing : Given{report.given.at(parameter)};
  };
  return given(reports.at(static_cast<std::size_t>(owners_[parameter]))) != Given::kSum &&
         std::any_of(reports.begin(), reports.end(),
                     [&](const auto& report) { return given(report) == Given::kBeside; });
}

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

/// Returns the form in which replicas add up a gradient: dense if it is so anywhere, since a sparse
/// gradient can become dense, but not the other way.
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

void GradientReducer::reduce(const std::vector<Report>& reports, std::uint64_t number) {
  const at::NoGradGuard no_grad;
  const auto done = finish_early(reports);
  std::vector<Forms> forms;
  for (const auto& report : reports) forms.push_back(report.forms);
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (common_form(forms, i) == Form::kSparse) reduce_sparse(i);
  }
  if (hook_ && replicas_.size() > 1) {  // else nothing travels that it could make smaller
    reduce_buckets<HookedMean>(forms, done, [&](auto& means, std::size_t i, const auto&) {
      means.emplace_back(replicas_.lane(first_lane_ + buckets_.size() + i).named("gradients"),
                         number, *hook_, first_bucket_ + static_cast<std::int64_t>(i),
                         all_gradients(buckets_[i], forms), divisor_);
    });
  } else {
    reduce_buckets<BucketMean>(forms, done, [&](auto& means, std::size_t, const auto& dense) {
      means.emplace_back(replicas_, dense_gradients(dense), owners_among(owners_, dense), divisor_);
    });
  }
  drop_what_others_own();
  expected_ = std::move(forms);
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

/// Returns a gradient for each parameter of the bucket. Those that are not dense are zeros, which
/// nobody keeps: a hook knows elements by their places.
std::vector<at::Tensor> GradientReducer::all_gradients(const std::vector<std::size_t>& bucket,
                                                       const std::vector<Forms>& forms) const {
  std::vector<at::Tensor> gradients;
  for (const auto parameter : bucket) {
    const bool dense = common_form(forms, parameter) == Form::kDense;
    gradients.push_back(dense ? dense_gradient(parameters_[parameter])
                              : at::zeros_like(parameters_[parameter]));
  }
  return gradients;
}

/// Averages the buckets that are not `done`. While the sums of one bucket travel, so do the parts
/// of the next two; more at once would take memory for what comes from others.
/// @param make  appends the mean of bucket i, whose dense parameters it is given, to those under
/// way
template <class Mean, class Make>
void GradientReducer::reduce_buckets(const std::vector<Forms>& forms, const std::vector<bool>& done,
                                     Make&& make) {
  std::deque<Mean> under_way;
  for (std::size_t i = 0; i < buckets_.size(); ++i) {
    const auto dense = dense_ones(buckets_[i], forms);
    if (done[i] || dense.empty()) continue;
    make(under_way, i, dense);
    if (under_way.size() > 1) under_way[under_way.size() - 2].add();
    if (under_way.size() > 2) {
      under_way.front().finish();
      under_way.pop_front();
    }
  }
  if (!under_way.empty()) under_way.back().add();
  for (auto& bucket : under_way) bucket.finish();
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
  const auto type = parameters_[parameter].scalar_type();
  const bool wide = d2d::sums_wide(type);
  d2d::Payload own;
  if (gradient.defined()) {
    const auto rows = gradient.coalesce();
    own.tensors = {rows.indices(), rows.values()};
  }
  at::Tensor sum;
  for (const auto& part : replicas_.all_gather(std::move(own), "a sparse gradient")) {
    if (part.tensors.empty()) continue;
    const auto& values = part.tensors.at(1);
    const auto rows = at::_sparse_coo_tensor_unsafe(
        part.tensors.at(0), wide ? values.to(at::kFloat) : values, parameters_[parameter].sizes());
    sum = sum.defined() ? (sum + rows).coalesce() : rows._coalesced_(true).clone();
  }
  SMP_ASSERT(sum.defined(), "a sparse gradient that no replica has");
  gradient = sum.div_(divisor_).to(type);
}

}  // namespace smp::dp
