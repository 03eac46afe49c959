// smp/data/distributed_sampler.h: which samples each replica reads (docs/data_parallelism.md).
#pragma once

#include <torch/data/samplers/base.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "smp/detail/export.h"

namespace smp {

/// How a DistributedSampler deals samples out; the same on all ranks.
struct DistributedSamplerOptions {
  /// If true, every epoch has another random order, the same on all ranks; otherwise the order is
  /// 0, 1, 2, ...
  bool shuffle = true;
  std::uint64_t seed = 0;
  /// Treatment of samples that cannot be divided among the replicas: true leaves them out; false
  /// reads some of the first samples twice, so that every sample is read.
  bool drop_last = false;
  /// Number of replicas, and the number of this one; default: those of smp::data_shard().
  std::optional<int> replicas = std::nullopt;
  std::optional<int> replica = std::nullopt;
};

/// Gives each replica its share of the numbers 0 to size - 1: the same count in all, so that all
/// have the same number of batches. All stages of a replica get the same numbers. Replica r of R
/// reads entries r, r + R, r + 2R, ... of the epoch's order, so the replicas' k-th batches together
/// are the k-th batch of one process that reads R times as many at once.
///
///     smp::DistributedSampler sampler(dataset.size());
///     for (int epoch = 0; epoch < epochs; ++epoch) {
///       for (sampler.set_epoch(epoch); auto numbers = sampler.next(batch_size);) ...
///
/// It may also be the sampler of torch::data::make_data_loader: each pass over the loader is one
/// more epoch. The numbers depend on seed, epoch and size only. Threads: one at a time.
class SMP_API DistributedSampler : public torch::data::samplers::Sampler<> {
 public:
  /// Makes a sampler of the numbers 0 to size - 1, at the beginning of epoch 0.
  /// @throws UsageError  no sample for a replica (drop_last), or no such replica.
  explicit DistributedSampler(std::size_t size, DistributedSamplerOptions options = {});

  /// Begins epoch `epoch`.
  void set_epoch(std::size_t epoch);
  std::size_t epoch() const noexcept { return epoch_; }
  /// Returns the number of samples of one replica in an epoch.
  std::size_t samples() const noexcept { return own_.size(); }

  /// Begins the next epoch if samples of this one have been taken, else this one again. Right after
  /// load() it goes on instead, if samples of that epoch are left, because a data loader begins
  /// every pass with it.
  void reset(std::optional<std::size_t> new_size = std::nullopt) override;
  /// Returns the next numbers, at most `batch_size`; nothing at the end of the epoch.
  std::optional<std::vector<std::size_t>> next(std::size_t batch_size) override;
  /// Saves the epoch and the position in it as what all replicas have read, so that load() may go
  /// on with another number of replicas.
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 private:
  void fill();
  std::vector<std::size_t> order_of_epoch() const;

  std::size_t size_;
  DistributedSamplerOptions options_;  // replicas and replica are set
  std::size_t epoch_ = 0;
  std::size_t taken_ = 0;         // of own_
  bool is_loaded_ = false;        // and nobody has asked for a sample since
  std::vector<std::size_t> own_;  // numbers of this replica in this epoch
};

}  // namespace smp
