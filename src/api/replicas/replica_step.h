// api/replicas/replica_step.h: one step of a replica among those of the others: they agree before
// it, and average gradients after it (docs/data_parallelism.md).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "d2d/collectives/communicator.h"

namespace smp {

class Rank;
class Replicas;

/// Threads: the rank's; suspends the user's fiber.
class ReplicaStep {
 public:
  /// What the first stage of a replica tells the others of its batch.
  struct Batch {
    std::int64_t step = 0;   ///< how many such steps the replica has begun, this one among them
    std::int64_t rows = -1;  ///< -1: nothing is split
    std::int64_t microbatches = 0;
    bool idle = false;    ///< there is none (smp::Join)
    std::string facts;    ///< StepFacts::take(): what all replicas ought to do alike
    std::string problem;  ///< this replica cannot run the step; the reason
    std::string samples;  ///< where other ranks are given the same: Microbatches::digest()
  };

  /// @param learns  whether the step may have gradients; one that does not concerns only those
  /// replicas that share distributed modules
  ReplicaStep(Rank& rank, Replicas& replicas, bool learns);

  /// Whether other replicas take part.
  bool shared() const noexcept { return shared_; }
  /// Whether this replica has no batch, so that nothing runs here (smp::Join).
  bool idle() const noexcept;

  /// On pp_rank 0, before the step. @param loss  StepOptions::loss
  /// @return by what losses are multiplied in backward
  /// @throws UsageError     replicas do not do the same
  /// @throws RemoteError    another replica cannot run the step
  /// @throws PeerLostError  another replica left, which may have had fewer batches
  double agree(Batch own, const std::string& loss) const;

  /// On every rank, before its part of the step.
  void begin() const;
  /// On every rank after its part of the step: averages gradients over the replicas.
  /// @throws RemoteError    the step failed in another replica
  /// @throws PeerLostError  another replica left
  void finish() const;
  /// On every rank, instead, in the handler of what ended the step here: tells the other replicas.
  void fail() const noexcept;

 private:
  struct EndOfStep;
  d2d::Communicator members() const;
  std::vector<Batch> exchange(const Batch& own) const;
  bool counts_apart(GlobalRank other) const;
  double share_of_loss(const std::vector<Batch>& batches, const std::string& loss) const;
  void require_same_steps(const std::vector<Batch>& batches) const;
  void require_same_facts(const std::vector<Batch>& batches) const;
  void require_same_counts(const std::vector<Batch>& batches) const;
  void require_same_samples(const std::vector<Batch>& batches) const;

  Rank& rank_;
  Replicas& replicas_;
  const bool learns_;
  const bool shared_;
};

}  // namespace smp
