// smp/topology.h: which rank stands where on the parallel axes, and the groups of ranks
// (paper §3.2.2; docs/design.md, Ranks as types).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "smp/detail/export.h"

namespace smp {

/// The sets of ranks that a rank belongs to. kMp holds all ranks of one model replica (pp × tp),
/// kDp all ranks that see the same stage (tp × rdp), kRdp the replicas of one shard, kLocal the
/// ranks of one machine.
enum class Group { kWorld, kMp, kPp, kTp, kDp, kRdp, kLocal };

/// A rank's place on the three axes.
struct Coordinates {
  int rdp = 0;
  int pp = 0;
  int tp = 0;
  friend bool operator==(const Coordinates&, const Coordinates&) = default;
};

/// The number of ranks and their arrangement.
struct Arrangement {
  int world_size = 1;
  int pp_size = 1;
  int tp_size = 1;
  /// A permutation of D, P and T (the right-most letter varies fastest), "cluster" or "spread".
  std::string placement = "cluster";
  /// Number of the machine of each rank; empty means that all ranks share one.
  std::vector<int> machine_of_rank;
};

/// The places of all ranks. It is a value, the same on every rank except for rank().
class SMP_API Topology {
 public:
  /// Makes the topology of one rank.
  Topology() : Topology(Arrangement{}, 0) {}
  /// Makes the topology as `rank` sees it.
  /// @throws UsageError  pp · tp does not divide the world size, `placement` is no permutation, or
  ///                     `rank` is not in [0, world_size).
  Topology(const Arrangement& arrangement, int rank);

  int rank() const { return rank_; }
  int size() const { return world_size_; }
  int pp_rank() const { return coordinates(rank_).pp; }
  int pp_size() const { return sizes_.pp; }
  int tp_rank() const { return coordinates(rank_).tp; }
  int tp_size() const { return sizes_.tp; }
  int rdp_rank() const { return coordinates(rank_).rdp; }
  int rdp_size() const { return sizes_.rdp; }
  int dp_rank() const { return group_rank(Group::kDp); }
  int dp_size() const { return sizes_.tp * sizes_.rdp; }
  int mp_rank() const { return group_rank(Group::kMp); }
  int mp_size() const { return sizes_.pp * sizes_.tp; }
  int local_rank() const { return group_rank(Group::kLocal); }
  int local_size() const { return static_cast<int>(group(Group::kLocal).size()); }

  /// Returns the placement in force as letters: "DPT", "TPD", ...
  const std::string& placement() const { return letters_; }

  /// Returns the coordinates of `rank`, which must be in [0, size()), as everywhere below.
  Coordinates coordinates(int rank) const;
  /// Returns the rank at `place`, each of whose coordinates is below the size of its axis.
  int rank_at(const Coordinates& place) const;

  /// Returns the global ranks of this rank's group, ascending. A rank's number within the group is
  /// its index.
  std::vector<int> group(Group which) const { return group(which, rank_); }
  std::vector<int> group(Group which, int of_rank) const;
  /// Returns this rank's number within its group.
  int group_rank(Group which) const { return group_rank(which, rank_); }
  int group_rank(Group which, int of_rank) const;
  int group_size(Group which) const { return static_cast<int>(group(which).size()); }
  /// Returns all groups of a kind, ordered by their first rank. They are disjoint and cover the
  /// world.
  std::vector<std::vector<int>> groups(Group which) const;

 private:
  bool share_group(Group which, int a, int b) const;

  // Constant after construction.
  int world_size_;
  int rank_;
  Coordinates sizes_;    // number of ranks on each axis
  std::string letters_;  // right-most varies fastest
  std::vector<int> machine_of_rank_;
};

/// Returns the permutation of D, P, T that "cluster", "spread" or a permutation (any case) stands
/// for; empty if `strategy` is none of them.
SMP_API std::string placement_letters(std::string_view strategy);

}  // namespace smp
