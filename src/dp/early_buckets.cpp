// dp/early_buckets.cpp: see the header.
#include "dp/early_buckets.h"

#include <xxhash.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "d2d/tensors/tensor_data.h"
#include "dp/shard_plan.h"

namespace smp::dp {
namespace {

constexpr auto kNoBucket = std::numeric_limits<std::size_t>::max();

/// Returns a hash of the values, since versions do not tell of writes through Tensor::data(), as
/// torch's clip_grad_norm_ does them.
std::uint64_t hash_of(const at::Tensor& row) {
  return XXH3_64bits(row.const_data_ptr(), row.nbytes());
}

}  // namespace

EarlyBuckets::EarlyBuckets(d2d::Communicator replicas, const std::vector<at::Tensor>& parameters,
                           const std::vector<int>& owners,
                           const std::vector<std::vector<std::size_t>>& buckets,
                           std::uint64_t first_lane, int divisor)
    : replicas_(std::move(replicas)),
      parameters_(parameters),
      owners_(owners),
      first_lane_(first_lane),
      divisor_(divisor),
      buckets_(buckets.size()),
      bucket_of_(parameters.size(), kNoBucket) {
  for (std::size_t bucket = 0; bucket < buckets.size(); ++bucket) {
    for (const auto parameter : buckets[bucket]) bucket_of_[parameter] = bucket;
  }
}

d2d::Communicator EarlyBuckets::lane_of(std::size_t bucket) const {
  return replicas_.lane(first_lane_ + bucket).named("gradients of replicas");
}

void EarlyBuckets::begin_step(std::uint64_t number, std::vector<std::vector<std::size_t>> expected,
                              fiber::Event& news, const Hooked& hook) {
  SMP_ASSERT(number_ == 0 && expected.size() == buckets_.size(), "step ", number,
             " begins in step ", number_, " with ", expected.size(), " buckets of ",
             buckets_.size());
  number_ = number;
  news_ = &news;
  hooked_ = hook;
  final_.assign(parameters_.size(), true);
  for (std::size_t i = 0; i < buckets_.size(); ++i) {
    auto& bucket = buckets_[i];
    bucket.expected = std::move(expected[i]);
    bucket.missing = bucket.expected.size();
    for (const auto parameter : bucket.expected) final_[parameter] = false;
  }
}

void EarlyBuckets::note_final(std::size_t parameter) {
  if (number_ == 0 || final_[parameter]) return;
  final_[parameter] = true;
  const auto number = bucket_of_[parameter];
  if (--buckets_[number].missing == 0) begin(number);
}

/// Begins the sum of a bucket, unless a gradient is not what was expected: then the bucket is
/// averaged at the end of the step.
void EarlyBuckets::begin(std::size_t number) {
  auto& bucket = buckets_[number];
  std::vector<at::Tensor> gradients;
  for (const auto parameter : bucket.expected) {
    const auto& gradient = parameters_[parameter].grad();
    const bool usual = gradient.defined() && gradient.layout() == c10::kStrided &&
                       gradient.device().is_cpu() && !gradient.is_inference() &&
                       gradient.dtype() == parameters_[parameter].dtype() &&
                       gradient.sizes() == parameters_[parameter].sizes();
    if (!usual) return;
    gradients.push_back(gradient);
  }
  bucket.rows =
      std::make_unique<BucketRows>(std::move(gradients), owners_among(owners_, bucket.expected));
  for (std::size_t i = 0; i < bucket.expected.size(); ++i) {
    const auto& gradient = bucket.rows->tensors()[i];
    bucket.sent.push_back({bucket.expected[i], gradient.const_data_ptr(),
                           static_cast<std::uint32_t>(gradient._version()),
                           hash_of(bucket.rows->rows()[i])});
  }
  if (hooked_.hook != nullptr) {
    bucket.codec = std::make_unique<BucketCodec>(
        *hooked_.hook, hooked_.first_bucket + static_cast<std::int64_t>(number));
  }
  bucket.sum = std::make_unique<d2d::SumAside>(
      lane_of(number), bucket.rows->parts(replicas_.size()), divisor_, number_, bucket.codec.get());
  bucket.sum->watch(*news_);
  ++begun_;
}

void EarlyBuckets::progress() {
  if (begun_ == 0) return;
  for (auto& bucket : buckets_) {
    if (bucket.sum && !bucket.sum->added() && bucket.sum->can_add()) bucket.sum->add();
  }
}

/// True if `.grad` of every parameter of the bucket still holds what was sent.
bool EarlyBuckets::is_untouched(const Bucket& bucket) const {
  for (std::size_t i = 0; i < bucket.sent.size(); ++i) {
    const auto& [parameter, data, version, hash] = bucket.sent[i];
    const auto& gradient = parameters_[parameter].grad();
    if (!gradient.is_same(bucket.rows->tensors()[i])) return false;
    if (gradient.const_data_ptr() != data) return false;
    if (static_cast<std::uint32_t>(gradient._version()) != version) return false;
    if (hash_of(d2d::contiguous_data(gradient.detach())) != hash) return false;
  }
  return true;
}

std::string EarlyBuckets::report() const {
  std::string report;
  for (const auto& bucket : buckets_) {
    report.push_back(bucket.sum && is_untouched(bucket) ? '+' : '-');
  }
  return report;
}

void EarlyBuckets::finish(const std::vector<bool>& counts) {
  for (std::size_t i = 0; i < buckets_.size(); ++i) {
    if (!counts[i]) buckets_[i].sum.reset();
  }
  for (auto& bucket : buckets_) {
    if (bucket.sum && !bucket.sum->added()) bucket.sum->add();
  }
  for (auto& bucket : buckets_) {
    if (!bucket.sum) continue;
    bucket.sum->write();
    bucket.rows->write_back();
    bucket.sum.reset();
  }
}

/// Drops all sums that are not written. A lane in which nothing was expected to begin needs no
/// cleanup.
void EarlyBuckets::end_step() noexcept try {
  if (number_ == 0) return;
  for (std::size_t i = 0; i < buckets_.size(); ++i) {
    auto& bucket = buckets_[i];
    bucket.sum.reset();
    bucket.codec.reset();
    bucket.rows.reset();
    bucket.sent.clear();
    if (!bucket.expected.empty()) lane_of(i).leave_out(number_);
    bucket.expected.clear();
  }
  begun_ = 0;
  number_ = 0;
} catch (...) {  // memory ran out; what came for a sum that was given up stays
  base::log(base::LogLevel::kWarning, "sums of gradients that were given up are kept");
  begun_ = 0;
  number_ = 0;
}

}  // namespace smp::dp
