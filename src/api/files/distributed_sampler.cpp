// api/files/distributed_sampler.cpp: the order of an epoch, dealt to the replicas in turn.
#include "smp/data/distributed_sampler.h"

#include <ATen/ATen.h>
#include <torch/serialize/archive.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <utility>

#include "base/check.h"
#include "base/random.h"
#include "smp/session.h"

namespace smp {

DistributedSampler::DistributedSampler(std::size_t size, DistributedSamplerOptions options)
    : size_(size), options_(options) {
  if (!options_.replicas) options_.replicas = data_shard().count;
  if (!options_.replica) options_.replica = data_shard().index;
  SMP_REQUIRE(*options_.replica >= 0 && *options_.replica < *options_.replicas,
              "smp::DistributedSampler: replica ", *options_.replica, " of ", *options_.replicas);
  fill();
}

void DistributedSampler::set_epoch(std::size_t epoch) {
  epoch_ = epoch;
  is_loaded_ = false;
  fill();
}

void DistributedSampler::reset(std::optional<std::size_t> new_size) {
  const bool goes_on = std::exchange(is_loaded_, false) && taken_ < own_.size();
  if (goes_on && new_size.value_or(size_) == size_) return;
  if (taken_ > 0) ++epoch_;
  size_ = new_size.value_or(size_);
  fill();
}

/// Shuffles by hand, because std::shuffle differs between standard libraries.
std::vector<std::size_t> DistributedSampler::order_of_epoch() const {
  std::vector<std::size_t> order(size_);
  std::iota(order.begin(), order.end(), std::size_t{0});
  if (!options_.shuffle) return order;
  std::mt19937_64 random(base::mix_key(options_.seed, epoch_));
  for (std::size_t i = size_; i > 1; --i) std::swap(order[i - 1], order[random() % i]);
  return order;
}

void DistributedSampler::fill() {
  const auto replicas = static_cast<std::size_t>(*options_.replicas);
  const auto replica = static_cast<std::size_t>(*options_.replica);
  const auto count = (size_ + (options_.drop_last ? 0 : replicas - 1)) / replicas;
  SMP_REQUIRE(count > 0, "smp::DistributedSampler: ", size_, " samples for ", replicas,
              " replicas leave one without any; use fewer replicas",
              options_.drop_last ? ", or drop_last = false" : "");
  const auto order = order_of_epoch();
  taken_ = 0;
  own_.clear();
  for (std::size_t i = 0; i < count; ++i) own_.push_back(order[(replica + i * replicas) % size_]);
}

std::optional<std::vector<std::size_t>> DistributedSampler::next(std::size_t batch_size) {
  is_loaded_ = false;
  const auto count = std::min(batch_size, own_.size() - taken_);
  if (count == 0) return std::nullopt;
  const auto begin = own_.begin() + static_cast<std::ptrdiff_t>(taken_);
  taken_ += count;
  return std::vector<std::size_t>(begin, begin + static_cast<std::ptrdiff_t>(count));
}

void DistributedSampler::save(torch::serialize::OutputArchive& archive) const {
  archive.write("epoch", at::full({}, static_cast<std::int64_t>(epoch_), at::kLong), true);
  archive.write("taken", at::full({}, static_cast<std::int64_t>(taken_), at::kLong), true);
  archive.write("replicas", at::full({}, *options_.replicas, at::kLong), true);
}

void DistributedSampler::load(torch::serialize::InputArchive& archive) {
  at::Tensor epoch, taken;
  archive.read("epoch", epoch, true);
  archive.read("taken", taken, true);
  set_epoch(static_cast<std::size_t>(epoch.item<std::int64_t>()));
  // Others may have taken part then; what all of them have read counts. Of what cannot be divided
  // some are read again rather than none.
  const std::int64_t replicas = *options_.replicas;
  at::Tensor before = at::full({}, replicas, at::kLong);
  archive.try_read("replicas", before, true);
  const auto read_by_all = taken.item<std::int64_t>() * before.item<std::int64_t>();
  taken_ = std::min(static_cast<std::size_t>(read_by_all / replicas), own_.size());
  is_loaded_ = true;
}

}  // namespace smp
