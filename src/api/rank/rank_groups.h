// api/rank/rank_groups.h: with which other ranks this one talks, trains and shares samples.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "api/rank/rank_parts.h"
#include "d2d/collectives/communicator.h"

namespace smp {

/// Groups of ranks that are there to talk to: all of a group, or this rank alone while a job is
/// planned. Threads: the rank's.
class RankGroups {
 public:
  /// Refers to its arguments.
  RankGroups(const RankParts& parts, d2d::Communicators& communicators)
      : parts_(parts), communicators_(communicators) {}

  d2d::Communicator of(Group which) const;
  /// Of any ranks of the job, which all ask for it.
  d2d::Communicator among(std::vector<GlobalRank> members) const;
  /// Ranks that train one model together, the first stage of the first replica first: plans are
  /// made there.
  d2d::Communicator training_ranks() const { return of(parts_.training_group()); }

  /// Ranks that run the same stage on other samples, by dp_rank.
  d2d::Communicator replicas() const { return several(Group::kDp, num_replicas()); }
  int num_replicas() const noexcept;
  /// Of these, those that hold the same slices of distributed modules as well, by rdp_rank.
  d2d::Communicator slice_replicas() const {
    return several(Group::kRdp, num_replicas() > 1 ? topology().rdp_size() : 1);
  }
  /// Of these, those that share distributed modules with this one, by tp_rank.
  d2d::Communicator slice_holders() const {
    return several(Group::kTp, num_replicas() > 1 ? topology().tp_size() : 1);
  }

  /// How many ranks of a stage are given the same batch: a TP_GROUP if it is prescaled, else one.
  int ranks_of_batch() const noexcept {
    return prescaled_batch() && num_replicas() > 1 ? topology().tp_size() : 1;
  }
  /// Whether this rank and `other`, which runs the same stage, are.
  bool has_batch_of(GlobalRank other) const {
    return prescaled_batch() && topology().coordinates(other.value()).rdp == topology().rdp_rank();
  }
  /// Of this rank's batch, among those of the job.
  int batch_number() const {
    return prescaled_batch() ? topology().rdp_rank() : topology().dp_rank();
  }

  /// Of collectives, that are not forgotten; for tests.
  std::size_t lanes() const noexcept { return communicators_.lanes(); }

 private:
  const Topology& topology() const noexcept { return parts_.topology; }
  bool prescaled_batch() const noexcept { return parts_.config.values().prescaled_batch; }
  /// The ranks of a group; this one alone if `count` is 1.
  d2d::Communicator several(Group which, int count) const {
    return count > 1 ? of(which) : among({GlobalRank(topology().rank())});
  }

  const RankParts& parts_;
  d2d::Communicators& communicators_;
};

}  // namespace smp
