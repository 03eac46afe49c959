// smp/join.h: replicas that have different numbers of batches (torch's Join;
// docs/data_parallelism.md, Uneven inputs).
#pragma once

#include <memory>

#include "smp/detail/export.h"

namespace smp {

class Rank;
class Replicas;

/// What becomes of gradients while a Join waits for the last replica; the same on all ranks.
struct JoinOptions {
  /// Divisor of losses once replicas have run out of batches. True, as in torch, divides by the
  /// number of all replicas, so that each batch counts what it counted before; false by the number
  /// of those that still have a batch, so that the gradient is that of one process on these
  /// batches. `loss = "sum"` divides by neither.
  bool divide_by_initial_world_size = true;
};

/// A loop that goes on until the last replica has run out of batches:
///
///     smp::Join join;
///     while (join.next(loader.has_batch())) {
///       if (join.active()) std::tie(x, y) = loader.batch();
///       optimizer.zero_grad();
///       auto loss = train(x, y);
///       optimizer.step();
///       if (join.active()) log(loss.reduce_mean());
///     }
///
/// In a replica without a batch a step of training reads no arguments and runs no body; its
/// gradients count as zero, and it gets those of the others. So parameters and the optimizer's
/// state stay the same in all replicas, whatever stands in the loop (clipping, schedulers, sharded
/// state). Make and end it alike on every rank, outside of steps; only one may live at a time.
/// Threads: the rank's. The session must outlive it.
class SMP_API Join {
 public:
  /// Begins a loop; make it alike on every rank. @throws UsageError  another Join lives, or a step
  /// runs.
  explicit Join(JoinOptions options = {});
  ~Join();
  Join(const Join&) = delete;
  Join& operator=(const Join&) = delete;

  /// Begins the next round and returns true if any replica has a batch. All ranks of the job call
  /// it, outside of steps. Suspends until the others have.
  /// @param has_batch  read where smp::pp_rank() is 0; other stages hear it from there
  /// @throws UsageError     replicas that share distributed modules (smp/tp.h) have a batch in one
  ///                        and none in another; a step runs.
  /// @throws PeerLostError  a rank left.
  bool next(bool has_batch);

  /// True if this replica has a batch in this round; true before the first round.
  bool active() const noexcept { return active_; }
  /// The number of replicas that have a batch in this round.
  int num_active() const noexcept { return num_active_; }
  /// The first of these replicas, by smp::dp_rank(); 0 if there is none.
  int first_active() const noexcept { return first_active_; }
  const JoinOptions& options() const noexcept { return options_; }

 private:
  Rank& rank_;
  Replicas& replicas_;
  const JoinOptions options_;
  bool active_ = true;
  int num_active_;
  int first_active_ = 0;
};

}  // namespace smp
