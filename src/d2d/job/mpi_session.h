// d2d/job/mpi_session.h: starts and ends MPI for this process, or joins an MPI the user started.
// Threads: the thread that constructs it makes all MPI calls of this library.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/memory/shared_memory.h"
#include "d2d/wire/members.h"
#include "d2d/wire/wire.h"
#include "d2d/wires/mpi/mpi_communicator.h"
#include "d2d/wires/mpi/mpi_segments.h"
#include "d2d/wires/mpi/mpi_wire.h"
#include "smp/rank.h"

namespace smp::d2d {

/// One per process, outliving its wires. All ranks of the job construct it.
class MpiSession {
 public:
  /// Starts MPI unless it runs already; an MPI that the user started is not ended by us.
  /// @throws UsageError  MPI was ended before: a process can start it only once.
  MpiSession();
  /// Ends MPI if this session started it. If other ranks do not end theirs as well: after 5 s
  /// while an exception unwinds (when this process exits, so that the exception can be reported),
  /// else after half an hour, the whole job is ended.
  ~MpiSession();
  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;

  GlobalRank rank() const noexcept { return rank_; }
  int size() const noexcept { return static_cast<int>(machine_of_rank_.size()); }
  /// For each rank, the first rank that shares memory with it, which stands for their machine.
  const std::vector<int>& machine_of_rank() const noexcept { return machine_of_rank_; }
  /// The number of ranks on this machine, and how many of them come before this one.
  int local_size() const noexcept;
  int local_rank() const noexcept;
  Members ranks_of_this_host() const;
  bool started_mpi() const noexcept { return started_mpi_; }
  /// The communicator of all ranks, which only this library uses.
  const MpiCommunicator& world() const noexcept { return world_; }

  /// Makes a wire between `members` of the job, with a message space of its own. Exactly these
  /// ranks call it, with the same members in the same order. A channel over it: `Channel
  /// channel(session.connect(members));`
  /// @throws UsageError  a rank does not exist, or this rank is not among them.
  std::unique_ptr<Wire> connect(const Members& members, MpiWireOptions options = {}) const;
  /// Makes a wire between all ranks of the job, which all call it.
  std::unique_ptr<Wire> connect_all(MpiWireOptions options = {}) const;

  /// Returns `text` of every rank, on every rank; all call it. Blocks.
  std::vector<std::string> all_gather(const std::string& text) const;

  /// Makes memory of zeros that the ranks of this machine share, and that is gone with the last of
  /// them; nothing where the machine refuses. All ranks call it. Blocks.
  std::optional<base::SharedMemory> share_memory(std::size_t bytes) const;

  /// Waits until every rank of the job has called it. Blocks.
  void barrier() const;

  /// Ends every process of the job with `exit_code`.
  [[noreturn]] void abort(int exit_code) const noexcept;
  /// Does the same on any thread, whether a session lives or not.
  [[noreturn]] static void abort_job(int exit_code) noexcept;

 private:
  bool meet_to_finalize(base::Nanoseconds deadline) const;

  bool started_mpi_;
  int exceptions_at_start_;
  MpiCommunicator world_;
  GlobalRank rank_;
  std::vector<int> machine_of_rank_;
  MpiSegments segments_;
};

}  // namespace smp::d2d
