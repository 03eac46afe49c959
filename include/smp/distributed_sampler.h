// smp/distributed_sampler.h: which samples each replica reads (docs/data_parallelism.md).
#pragma once

#include <torch/data/samplers/base.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "smp/detail/export.h"

namespace smp {

struct DistributedSamplerOptions {
  /// Another order in every epoch; the same on all ranks. Else 0, 1, 2, ...
  bool shuffle = true;
  std::uint64_t seed = 0;
  /// What happens to samples that cannot be divided among the replicas: left out, or (false) some
  /// of the first are read twice, so that every sample is read.
  bool drop_last = false;
  /// Default: those of smp::data_shard().
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
/// Or as the sampler of torch::data::make_data_loader: each pass over the loader is an epoch more.
/// Depends on seed, epoch and size only. Threads: one at a time.
class SMP_API DistributedSampler : public torch::data::samplers::Sampler<> {
 public:
  /// @throws UsageError  no sample for a replica (drop_last), or no such replica.
  explicit DistributedSampler(std::size_t size, DistributedSamplerOptions options = {});

  /// Begins this epoch.
  void set_epoch(std::size_t epoch);
  std::size_t epoch() const noexcept { return epoch_; }
  /// Samples of one replica in an epoch.
  std::size_t samples() const noexcept { return own_.size(); }

  /// Begins anew: the next epoch if samples of this one have been taken. Right after load() it goes
  /// on instead, if samples of that epoch are left: a data loader begins every pass with it.
  void reset(std::optional<std::size_t> new_size = std::nullopt) override;
  /// The next at most `batch_size` numbers; none at the end of the epoch.
  std::optional<std::vector<std::size_t>> next(std::size_t batch_size) override;
  /// Epoch and place in it: how much all replicas have read, whatever their number is when load()
  /// goes on.
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
