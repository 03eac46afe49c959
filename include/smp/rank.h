// smp/rank.h: numbers of ranks as types, so that a rank of one axis is not taken for one of
// another.
#pragma once

#include <compare>
#include <cstddef>
#include <functional>
#include <ostream>

namespace smp {

/// The number of a rank on `Axis`, from 0; -1, the default, is none. It prints as the number. A
/// number on one axis does not convert to another: smp::Topology tells which process stands where.
template <class Axis>
class RankOn {
 public:
  constexpr RankOn() = default;
  constexpr explicit RankOn(int value) : value_(value) {}
  constexpr int value() const noexcept { return value_; }
  /// Returns the number as an index into arrays with one element per rank.
  constexpr std::size_t index() const noexcept { return static_cast<std::size_t>(value_); }
  friend constexpr auto operator<=>(RankOn, RankOn) = default;  // NOLINT(modernize-use-nullptr)
  friend std::ostream& operator<<(std::ostream& out, RankOn rank) { return out << rank.value_; }

 private:
  int value_ = -1;
};

/// A process of the job, as MPI numbers it.
using GlobalRank = RankOn<struct GlobalAxis>;
/// A stage of a pipeline.
using PpRank = RankOn<struct PipelineAxis>;
/// A shard of a layer.
using TpRank = RankOn<struct TensorAxis>;
/// A replica of a shard, among replicas that see different samples.
using RdpRank = RankOn<struct ReplicaAxis>;

}  // namespace smp

template <class Axis>
struct std::hash<smp::RankOn<Axis>> {
  std::size_t operator()(smp::RankOn<Axis> rank) const noexcept {
    return std::hash<int>()(rank.value());
  }
};
