// api/replicas/replica_step.h: one step of a replica among those of the others: they agree before
// it, and add up gradients after it (docs/data_parallelism.md).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "d2d/collectives/communicator.h"

namespace smp {

class Rank;
class Replicas;

/// One step of a replica among the others. Threads: the rank's; suspends the user's fiber.
class ReplicaStep {
 public:
  /// The message of a replica's first stage to the others about its batch.
  struct Batch {
    std::int64_t step = 0;   ///< how many such steps the replica has begun, this one among them
    std::int64_t rows = -1;  ///< -1: nothing is split
    std::int64_t microbatches = 0;
    bool idle = false;    ///< there is none (smp::Join)
    std::string facts;    ///< StepFacts::take(): facts that must be the same in all replicas
    std::string problem;  ///< this replica cannot run the step; the reason
    std::string samples;  ///< Microbatches::digest(), if other ranks are given the same batch
  };

  /// @param learns  whether the step may have gradients; one that does not concerns only those
  /// replicas that share distributed modules
  ReplicaStep(Rank& rank, Replicas& replicas, bool learns);

  /// True if other replicas take part.
  bool shared() const noexcept { return shared_; }
  /// True if this replica has no batch, so that nothing runs here (smp::Join).
  bool idle() const noexcept;

  /// Agrees with the other replicas on the step, on pp_rank 0 before it.
  /// @param loss  StepOptions::loss
  /// @return the factor of the losses in backward
  /// @throws UsageError     replicas do not do the same
  /// @throws RemoteError    another replica cannot run the step
  /// @throws PeerLostError  another replica left, which may have had fewer batches
  double agree(Batch own, const std::string& loss) const;

  /// Begins the step, on every rank before its part of it.
  void begin() const;
  /// Adds up gradients over the replicas, on every rank after its part of the step.
  /// @throws RemoteError    the step failed in another replica
  /// @throws PeerLostError  another replica left
  void finish() const;
  /// Tells the other replicas that the step failed here; on every rank instead of finish(), in the
  /// handler of the exception that ended the step.
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
