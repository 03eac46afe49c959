// smp/session.h: start and end, ranks and groups, and simple communication (paper §3.2.2, §3.2.3).
#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <memory>
#include <string>
#include <typeinfo>
#include <vector>

#include "smp/codec.h"
#include "smp/config.h"
#include "smp/detail/export.h"
#include "smp/topology.h"

namespace smp {

class RankSession;

/// The library's life on this rank. It ends in the destructor, after which the rank takes part in
/// nothing any more. One session may live at a time per rank; models, optimizers and steps end
/// before it. The destructor waits until the other ranks end theirs: half an hour, or 5 s while an
/// exception unwinds; then it ends the whole job. Threads: made, used and ended on one thread.
class SMP_API Session {
 public:
  explicit Session(std::unique_ptr<RankSession> session);
  ~Session();
  Session(Session&& other) noexcept;
  Session& operator=(Session&&) = delete;

  const Topology& topology() const noexcept;
  /// Returns the settings in force.
  const Config& config() const noexcept;

 private:
  std::unique_ptr<RankSession> session_;
};

/// Starts this rank: reads the settings (flags `--smp.KEY` are taken out of `argv`), starts MPI
/// unless the program did, and compares program and settings of all ranks.
/// All ranks of the job call it. The calling thread becomes the rank's: everything of this library
/// is used from it, and it makes all MPI calls.
/// @throws UsageError        listing everything that is wrong with the settings; ranks differ in
///                           program or settings; called twice.
/// @throws UnsupportedError  a feature that is known but not available yet was asked for; another
///                           LibTorch is loaded than the library was built with.
/// @throws PeerLostError     MPI could not start, or another rank left meanwhile.
[[nodiscard]] SMP_API Session init(int& argc, char** argv, const Config& config = {});

/// Options of a run with all ranks in one process; see run_local().
struct LocalRun {
  std::uint64_t seed = 0;    ///< seed of the order of events; the same seed gives the same run
  double mean_delay = 1e-6;  ///< mean delay of a message in simulated seconds; heavy-tailed
  bool random_order = true;  ///< draw among what is ready (else: as the schedule prefers)
};

/// Runs `rank_main` once per rank, all ranks as fibers of the calling thread, under a simulated
/// clock: for tests and debuggers. Deadlocks are found at once and reported. Flags of `argv` are
/// not read; the environment is. Each rank has a copy of the caller's default generator; what else
/// of LibTorch is global to a process (numbers of threads, flags) is shared by the ranks.
/// @throws what a rank threw first; InternalError with the table of who waits for whom.
SMP_API void run_local(int ranks, const std::function<void()>& rank_main, const Config& config = {},
                       const LocalRun& run = {});

/// True if a session runs on this rank. Everything below throws UsageError without one.
SMP_API bool is_initialized() noexcept;

/// True if `smp plan` runs this program: as rank 0 alone, up to the first step, which prints the
/// plan and ends the program. Then leave out what costs time before the first step.
SMP_API bool is_planning();

// Numbers count from 0 and are constant while the session lives. Groups are those of smp::Group.

/// Return the number of this process in the job, as MPI numbers them, and the number of processes.
SMP_API int rank();
SMP_API int size();
/// Return the number of this rank among the ranks of its machine, and how many these are.
SMP_API int local_rank();
SMP_API int local_size();
/// Returns the device of the setting `device`, where this rank's models belong
/// (`model->to(smp::device())`) and its own tensors. It is already the calling thread's current
/// device.
SMP_API at::Device device();
/// Return the stage that this rank runs, and the number of stages.
SMP_API int pp_rank();
SMP_API int pp_size();
/// Return the number of this rank among those that share the layers of distributed modules
/// (docs/tensor_parallelism.md), and how many these are.
SMP_API int tp_rank();
SMP_API int tp_size();
/// Return the number of this rank among all that run the same stage, and how many these are:
/// dp_size() is tp_size() times rdp_size(). Without tensor parallelism dp_rank() is the number of
/// this replica. data_shard() says in every case which samples are its own
/// (docs/data_parallelism.md).
SMP_API int dp_rank();
SMP_API int dp_size();
/// Return the number of this rank among those that hold the same slices of distributed modules, and
/// how many these are; without tensor parallelism they equal dp_rank() and dp_size().
SMP_API int rdp_rank();
SMP_API int rdp_size();
/// The share of the samples that this rank reads: number `index` of `count`. It is dp_rank() of
/// dp_size(); with `prescaled_batch`, where ranks that share distributed modules have one batch,
/// rdp_rank() of rdp_size().
struct DataShard {
  int index = 0;
  int count = 1;
};
SMP_API DataShard data_shard();
/// Return the number of this rank among the ranks of one replica of the model, and how many these
/// are.
SMP_API int mp_rank();
SMP_API int mp_size();
/// Returns the global ranks of this rank's group, ascending.
SMP_API std::vector<int> group(Group which);
/// Returns the configured number of microbatches; a step may make fewer, see
/// StepOptions::microbatches.
SMP_API int num_microbatches();
/// Returns the number of the microbatch of the running step body or module; -1 outside of a step.
SMP_API int current_microbatch();

// All ranks of the group make these calls, in the same order. A rank that waits for one which does
// not is told so after Config::stall_seconds, or at once where that rank waits in another such
// call.
// In the body of a step and in modules, the ranks of one stage may make them: those of Group::kDp,
// kRdp and kTp, all of them in the same microbatch. (From one rank to another:
// smp/program/messages.h.) In a trial run a rank has its own value for all.

/// Returns when all ranks of the group have called it.
/// @throws UsageError     inside a step, for a group of several stages; another rank of the group
///                        makes another call here.
/// @throws PeerLostError  a rank of the group left, or nothing happened for abort_seconds.
SMP_API void barrier(Group which = Group::kWorld);

namespace detail {
SMP_API Packet broadcast(Packet own, const std::type_info& type, int root, Group which);
SMP_API std::vector<Packet> all_gather(Packet own, const std::type_info& type, Group which);
}  // namespace detail

/// Returns `value` of rank `root` (a global rank) on every rank of the group; what others pass is
/// not read. All ranks of the group call it. Tensors are new ones without history.
/// @throws as barrier(); UsageError if `root` is not in the group, or passes a value of another
///         type than this rank does.
template <class T>
T broadcast(const T& value, int root = 0, Group which = Group::kWorld) {
  static_assert(is_crossable_v<T>, "smp: values of this type cannot cross ranks; see smp/codec.h");
  Writer writer;
  if (rank() == root) writer.put(value);
  Packet packet = detail::broadcast(std::move(writer).take(), typeid(T), root, which);
  Reader reader(packet);
  return reader.get<T>();
}

/// Returns `value` of every rank of the group, in order of ranks, on every rank: numbers to add up,
/// tensors to join. All ranks of the group call it. Tensors are new ones without history. (While a
/// job is only planned there is rank 0 alone, whose value stands for all.)
///
///     double sum = 0;  // over all samples, of whichever replica
///     for (double of_replica : smp::all_gather(loss, smp::Group::kDp)) sum += of_replica;
///
/// @throws as barrier(); UsageError if another rank passes a value of another type.
template <class T>
std::vector<T> all_gather(const T& value, Group which = Group::kWorld) {
  static_assert(is_crossable_v<T>, "smp: values of this type cannot cross ranks; see smp/codec.h");
  Writer writer;
  writer.put(value);
  std::vector<T> values;
  for (Packet& packet : detail::all_gather(std::move(writer).take(), typeid(T), which)) {
    values.push_back(Reader(packet).get<T>());
  }
  return values;
}

}  // namespace smp
