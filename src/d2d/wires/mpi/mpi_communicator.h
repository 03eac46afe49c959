// d2d/wires/mpi/mpi_communicator.h: an MPI communicator of ours, and MPI's error codes as
// exceptions. Threads: the thread that started MPI.
#pragma once

#include <mpi.h>

#include <cstddef>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "d2d/wire/members.h"
#include "smp/rank.h"

namespace smp::d2d {

/// Returns MPI's own text for `code`.
std::string mpi_error_text(int code);

/// Throws PeerLostError with MPI's text unless `code` is MPI_SUCCESS.
/// @param peer  the rank on the other side, if MPI said
void check_mpi(int code, const char* doing, GlobalRank peer = {});

/// Owns a communicator whose errors are returned, never fatal; freed unless MPI is already over.
class MpiCommunicator {
 public:
  MpiCommunicator() = default;
  ~MpiCommunicator();
  MpiCommunicator(MpiCommunicator&& other) noexcept
      : handle_(std::exchange(other.handle_, MPI_COMM_NULL)) {}
  MpiCommunicator& operator=(MpiCommunicator&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }

  /// Makes a copy of `other` with a message space of its own. All its ranks call this.
  static MpiCommunicator duplicate(MPI_Comm other);
  /// Makes a communicator of the ranks that share this machine's memory. All ranks of `other` call
  /// this.
  static MpiCommunicator of_this_host(MPI_Comm other);
  /// Makes a communicator of `ranks` of `other`, in that order. Only these call this.
  static MpiCommunicator subgroup(MPI_Comm other, const Members& ranks);

  /// Returns this process's rank in `ranks`.
  static int rank_in(MPI_Comm ranks);

  MPI_Comm get() const noexcept { return handle_; }
  int rank() const { return rank_in(handle_); }
  int size() const;

 private:
  explicit MpiCommunicator(MPI_Comm handle);
  MPI_Comm handle_ = MPI_COMM_NULL;
};

/// Returns `own`, which is plain bytes, of each of `ranks`, in order. All of them call it; blocks.
template <class Plain>
std::vector<Plain> all_gather(const Plain& own, const MpiCommunicator& ranks, const char* doing) {
  static_assert(std::is_trivially_copyable_v<Plain>);
  std::vector<Plain> all(static_cast<std::size_t>(ranks.size()));
  check_mpi(
      MPI_Allgather(&own, sizeof own, MPI_BYTE, all.data(), sizeof own, MPI_BYTE, ranks.get()),
      doing);
  return all;
}

/// A meeting of all ranks that can be given up.
class MpiMeeting {
 public:
  explicit MpiMeeting(const MpiCommunicator& ranks);
  /// Returns true once every rank has entered.
  bool complete();

 private:
  MPI_Request request_ = MPI_REQUEST_NULL;
};

/// Returns `exit_code` if a launcher takes it for a failure, else 1: mpirun reads the lowest byte,
/// so that 0 and 256 would end a job that was aborted as if it had succeeded.
constexpr int as_failure(int exit_code) noexcept { return (exit_code & 0xff) == 0 ? 1 : exit_code; }

/// Calls MPI_Abort, never with a code of success, and ends this process, after 5 s even if the
/// launcher does not answer: one that is stopped, or cannot be reached, would hold the process for
/// ever.
[[noreturn]] void abort_mpi(MPI_Comm communicator, int exit_code) noexcept;

/// Ends the whole job once this process exits: not at once, so that the exception that is unwinding
/// can still be reported by whoever catches it.
void end_job_at_exit() noexcept;
bool job_ends_at_exit() noexcept;

}  // namespace smp::d2d
