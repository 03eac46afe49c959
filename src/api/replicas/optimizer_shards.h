// api/replicas/optimizer_shards.h: which replica keeps the optimizer's state of which parameter
// (paper App. H.1; docs/data_parallelism.md, Sharded optimizer state).
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/UndefinedTensorImpl.h>

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "d2d/collectives/communicator.h"

namespace smp {

class Rank;
class SessionState;
struct ModelDescription;

/// Decides on one rank which replica keeps the optimizer state of which parameter. All replicas
/// decide alike, without a message. Threads: the rank's.
class OptimizerShards {
 public:
  /// Parameters by the memory that they lie in.
  using ByMemory = std::unordered_map<const void*, std::vector<at::Tensor>>;

  /// Refers to its arguments.
  OptimizerShards(const Rank& rank, const SessionState& state) : rank_(rank), state_(state) {}

  /// True if state is sharded: the setting is on, and there are replicas.
  bool active() const noexcept;
  /// Notes in `model`, which is to be placed, how many ranks will share the state of each
  /// parameter; also in a job that is only planned.
  void note_shares(ModelDescription& model) const;
  /// Gives an owner to each of `parameters`, which this rank holds, that has none: parameters of
  /// distributed modules among the replicas of the slice, others among all replicas. Frozen ones do
  /// not count as load. One that lies in the memory of another (`set_data()`) goes where that one
  /// goes, as a step of each writes there. All replicas of the stage pass the same ones in the same
  /// order.
  void deal(const std::vector<at::Tensor>& parameters);

  /// Returns the owner's position among the replicas of the parameter, or of the slice; -1: none.
  int owner_of(const at::Tensor& parameter) const;
  std::vector<int> owners_of(const std::vector<at::Tensor>& parameters) const;
  /// True if the parameter has an owner, and that is another replica.
  bool is_elsewhere(const at::Tensor& parameter) const;
  /// True if the parameter has an owner, and that is this rank.
  bool is_here(const at::Tensor& parameter) const;
  bool is_slice(const at::Tensor& parameter) const;
  /// Gives those of `parameters` that have an owner the values that they have there. All replicas
  /// call it with the same ones. Suspends.
  void take_values(const std::vector<at::Tensor>& parameters) const;

 private:
  struct Share {
    // The address of one that is gone may be that of another.
    c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> parameter;
    int owner;
    bool here;
    bool slice;
  };
  const Share* find(const at::Tensor& parameter) const;
  void deal_slices(const std::vector<at::Tensor>& slices);
  void deal_whole(const std::vector<at::Tensor>& parameters);
  void add(const std::vector<at::Tensor>& parameters, const std::vector<int>& owners,
           const d2d::Communicator& replicas, bool slices);
  void add(const at::Tensor& parameter, int owner, bool here, bool slice);
  void follow(const ByMemory& dealt, const at::Tensor& parameter);
  ByMemory dealt_by_memory() const;

  const Rank& rank_;
  const SessionState& state_;
  std::unordered_map<const void*, Share> shares_;  // by TensorImpl
  std::vector<std::int64_t> slice_loads_;          // bytes, by position among replicas of slices
  std::vector<std::int64_t> whole_loads_;          // by position among all replicas
};

}  // namespace smp
