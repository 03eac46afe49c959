// api/replicas/replicas.h: what ranks that run the same stage in several replicas of the pipeline
// have in common.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "api/replicas/optimizer_shards.h"
#include "api/replicas/replica_gradients.h"
#include "api/replicas/replica_writes.h"

namespace smp {

class Join;
class Rank;
class SessionState;

/// Of one rank, also where there is one replica only. Threads: the rank's.
class Replicas {
 public:
  /// Refers to its arguments.
  Replicas(Rank& rank, const SessionState& state)
      : shards_(rank, state), gradients_(rank, state, shards_), writes_(rank, state) {}
  Replicas(const Replicas&) = delete;
  Replicas& operator=(const Replicas&) = delete;

  /// Of the running fiber. @throws UsageError if there is none.
  static Replicas& current();

  ReplicaGradients& gradients() noexcept { return gradients_; }
  ReplicaWrites& writes() noexcept { return writes_; }
  const OptimizerShards& shards() const noexcept { return shards_; }
  /// Models were placed, or are gone.
  void forget_models();
  /// OptimizerShards::deal(): gradients go where the state of their parameters is.
  void deal(const std::vector<at::Tensor>& parameters);

  /// The loop that runs, if replicas may have different numbers of batches; not owned.
  const Join* join() const noexcept { return join_; }
  void set_join(const Join* join) noexcept { join_ = join; }

 private:
  OptimizerShards shards_;
  ReplicaGradients gradients_;
  ReplicaWrites writes_;
  const Join* join_ = nullptr;
};

}  // namespace smp
