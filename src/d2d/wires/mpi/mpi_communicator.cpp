// d2d/wires/mpi/mpi_communicator.cpp: see the header.
#include "d2d/wires/mpi/mpi_communicator.h"

#include <pthread.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "base/check.h"

namespace smp::d2d {
namespace {

constexpr int kSubgroupTag = 4711;

bool mpi_is_over() {
  int over = 0;
  MPI_Finalized(&over);
  return over != 0;
}

bool ends_at_exit = false;  // of the process, as MPI itself is

}  // namespace

std::string mpi_error_text(int code) {
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(code, text, &length);
  return {text, static_cast<std::size_t>(length)};
}

void check_mpi(int code, const char* doing, GlobalRank peer) {
  if (code == MPI_SUCCESS) return;
  const std::string whom =
      peer == GlobalRank() ? std::string() : base::concat(" (rank ", peer, ")");
  throw PeerLostError(base::concat(doing, whom, ": MPI says '", mpi_error_text(code),
                                   "'; see the other ranks' logs and restart from a checkpoint."));
}

MpiCommunicator::MpiCommunicator(MPI_Comm handle) : handle_(handle) {
  MPI_Comm_set_errhandler(handle_, MPI_ERRORS_RETURN);
}

MpiCommunicator::~MpiCommunicator() {
  if (handle_ != MPI_COMM_NULL && !mpi_is_over()) MPI_Comm_free(&handle_);
}

MpiCommunicator MpiCommunicator::duplicate(MPI_Comm other) {
  MPI_Comm handle = MPI_COMM_NULL;
  check_mpi(MPI_Comm_dup(other, &handle), "duplicating a communicator");
  return MpiCommunicator(handle);
}

MpiCommunicator MpiCommunicator::of_this_host(MPI_Comm other) {
  MPI_Comm handle = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split_type(other, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &handle),
            "looking for the ranks of this machine");
  return MpiCommunicator(handle);
}

MpiCommunicator MpiCommunicator::subgroup(MPI_Comm other, const Members& ranks) {
  std::vector<int> numbers;
  for (const GlobalRank rank : ranks) numbers.push_back(rank.value());
  MPI_Group all = MPI_GROUP_NULL;
  MPI_Group some = MPI_GROUP_NULL;
  MPI_Comm handle = MPI_COMM_NULL;
  check_mpi(MPI_Comm_group(other, &all), "reading the group of a communicator");
  int code = MPI_Group_incl(all, ranks.size(), numbers.data(), &some);
  if (code == MPI_SUCCESS) code = MPI_Comm_create_group(other, some, kSubgroupTag, &handle);
  if (some != MPI_GROUP_NULL) MPI_Group_free(&some);
  MPI_Group_free(&all);
  check_mpi(code, "creating the communicator of a group of ranks");
  return MpiCommunicator(handle);
}

int MpiCommunicator::rank_in(MPI_Comm ranks) {
  int rank = 0;
  check_mpi(MPI_Comm_rank(ranks, &rank), "asking for this rank");
  return rank;
}

int MpiCommunicator::size() const {
  int size = 0;
  check_mpi(MPI_Comm_size(handle_, &size), "asking for the number of ranks");
  return size;
}

MpiMeeting::MpiMeeting(const MpiCommunicator& ranks) {
  check_mpi(MPI_Ibarrier(ranks.get(), &request_), "meeting the other ranks");
}

bool MpiMeeting::complete() {
  int done = 0;
  check_mpi(MPI_Test(&request_, &done, MPI_STATUS_IGNORE), "meeting the other ranks");
  return done != 0;
}

void abort_mpi(MPI_Comm communicator, int exit_code) noexcept {
  constexpr unsigned kSecondsForTheLauncher = 5;
  std::signal(SIGALRM, SIG_IGN);  // one that waits is no business of this
  std::signal(SIGALRM, [](int) { ::_exit(1); });
  sigset_t alarms;
  sigemptyset(&alarms);
  sigaddset(&alarms, SIGALRM);
  ::pthread_sigmask(SIG_UNBLOCK, &alarms, nullptr);
  ::alarm(kSecondsForTheLauncher);
  std::fflush(stdout);
  std::fflush(stderr);
  MPI_Abort(communicator, as_failure(exit_code));
  std::_Exit(as_failure(exit_code));  // MPI_Abort may return
}

void end_job_at_exit() noexcept {
  if (std::exchange(ends_at_exit, true)) return;
  std::atexit([] {
    if (!mpi_is_over()) abort_mpi(MPI_COMM_WORLD, 1);
  });
}

bool job_ends_at_exit() noexcept { return ends_at_exit; }

}  // namespace smp::d2d
