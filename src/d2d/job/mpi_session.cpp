// d2d/job/mpi_session.cpp: see the header.
#include "d2d/job/mpi_session.h"

#include <sys/statvfs.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <numeric>
#include <utility>

#include "alive/writing.h"
#include "base/check.h"
#include "d2d/wire/wire.h"

namespace smp::d2d {
namespace {

/// Warns of too little room for Open MPI's segments: Open MPI ends a process that finds none, and
/// its launcher may keep the message for itself.
void warn_of_little_shared_memory() noexcept {
  constexpr std::uint64_t kSegment = 5 << 20;  // of each rank; Open MPI takes 4 MiB and a little
  const char* const local_rank = std::getenv("OMPI_COMM_WORLD_LOCAL_RANK");
  struct statvfs room {};
  if (local_rank == nullptr || std::string(local_rank) != "0") return;
  if (::statvfs("/dev/shm", &room) != 0) return;
  const auto free = static_cast<std::uint64_t>(room.f_bavail) * room.f_frsize;
  if (free >= kSegment) return;
  std::fprintf(stderr,
               "smp: /dev/shm has room for %llu KiB, and Open MPI needs about 4 MiB there for each "
               "rank: if the job ends now, make it larger (docker run --shm-size=1g) or name "
               "another folder (mpirun --mca btl_vader_backing_directory DIR)\n",
               static_cast<unsigned long long>(free >> 10));
}

/// Ignores SIGPIPE: MPI handles a connection that was cut, and the process should not end without a
/// word.
void outlive_broken_pipes() noexcept {
  struct sigaction now {};
  if (::sigaction(SIGPIPE, nullptr, &now) == 0 && now.sa_handler == SIG_DFL) {
    ::signal(SIGPIPE, SIG_IGN);
  }
}

// True if MPI was not running and now is.
bool start_mpi() {
  int running = 0;
  int over = 0;
  MPI_Initialized(&running);
  MPI_Finalized(&over);
  SMP_REQUIRE(!over,
              "starting smp: MPI was already finalized in this process, and it cannot be "
              "started twice; keep the first session alive, or finalize MPI later.");
  if (running) return false;
  warn_of_little_shared_memory();
  outlive_broken_pipes();
  int provided = 0;
  check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided), "starting MPI");
  return true;
}

std::vector<int> machines_of(const MpiCommunicator& world) {
  const MpiCommunicator host = MpiCommunicator::of_this_host(world.get());
  int machine = world.rank();  // the first rank of a host tells the others
  check_mpi(MPI_Bcast(&machine, 1, MPI_INT, 0, host.get()), "naming machines");
  return all_gather(machine, world, "naming machines");
}

}  // namespace

MpiSession::MpiSession()
    : started_mpi_(start_mpi()),
      exceptions_at_start_(std::uncaught_exceptions()),
      world_(MpiCommunicator::duplicate(MPI_COMM_WORLD)),
      rank_(world_.rank()),
      machine_of_rank_(machines_of(world_)) {
  // An MPI of the user's may end after this session, without our help.
  if (started_mpi_) segments_.hide(MpiCommunicator::of_this_host(world_.get()));
}

int MpiSession::local_size() const noexcept {
  return static_cast<int>(std::count(machine_of_rank_.begin(), machine_of_rank_.end(),
                                     machine_of_rank_[rank_.index()]));
}

int MpiSession::local_rank() const noexcept {
  const auto own = machine_of_rank_.begin() + rank_.value();
  return static_cast<int>(std::count(machine_of_rank_.begin(), own, *own));
}

MpiSession::~MpiSession() {
  int over = 0;
  MPI_Finalized(&over);
  if (!started_mpi_ || over || job_ends_at_exit()) return;
  const bool unwinding = std::uncaught_exceptions() > exceptions_at_start_;
  const MpiWireOptions deadlines;
  segments_.give_back();
  if (!meet_to_finalize(unwinding ? deadlines.unwind_deadline : deadlines.leave_deadline)) {
    std::fprintf(stderr, "smp: rank %d ends%s, and not all other ranks do: ending the whole job.\n",
                 rank_.value(), unwinding ? " because of an exception" : "");
    if (!unwinding) abort(1);
    end_job_at_exit();
    return;
  }
  world_ = {};
  MPI_Finalize();
}

bool MpiSession::meet_to_finalize(base::Nanoseconds deadline) const try {
  const base::EndOfPatience end(deadline);
  MpiMeeting meeting(world_);
  for (int idle = 0; !meeting.complete(); ++idle) {
    if (end.has_come()) return false;
    wait_politely(idle);
  }
  return true;
} catch (const PeerLostError& error) {
  std::fprintf(stderr, "smp: rank %d: %s\n", rank_.value(), error.what());
  return false;
}

std::unique_ptr<Wire> MpiSession::connect(const Members& members, MpiWireOptions options) const {
  for (const GlobalRank member : members) {
    SMP_REQUIRE(member.value() < size(), "rank ", rank_, ": connecting the ranks ", members,
                ": they must be within 0 and ", size() - 1, ", the ranks of the job.");
  }
  SMP_REQUIRE(members.contain(rank_), "rank ", rank_, ": connecting the ranks ", members,
              ": it is not one of them; only the ranks to be connected call this.");
  const MpiCommunicator group = MpiCommunicator::subgroup(world_.get(), members);
  return std::make_unique<MpiWire>(group.get(), members, options);
}

std::unique_ptr<Wire> MpiSession::connect_all(MpiWireOptions options) const {
  return connect(Members::all(size()), options);
}

Members MpiSession::ranks_of_this_host() const {
  std::vector<GlobalRank> members;
  const int machine = machine_of_rank_[rank_.index()];
  for (int rank = 0; rank < size(); ++rank) {
    if (machine_of_rank_[static_cast<std::size_t>(rank)] == machine) members.emplace_back(rank);
  }
  return Members(std::move(members));
}

std::vector<std::string> MpiSession::all_gather(const std::string& text) const {
  const int own = static_cast<int>(text.size());
  const auto lengths = d2d::all_gather(own, world_, "gathering texts");
  std::vector<int> starts(lengths.size());
  std::exclusive_scan(lengths.begin(), lengths.end(), starts.begin(), 0);
  std::string all(static_cast<std::size_t>(starts.back() + lengths.back()), ' ');
  check_mpi(MPI_Allgatherv(text.data(), own, MPI_CHAR, all.data(), lengths.data(), starts.data(),
                           MPI_CHAR, world_.get()),
            "gathering texts");
  std::vector<std::string> texts;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    texts.push_back(
        all.substr(static_cast<std::size_t>(starts[i]), static_cast<std::size_t>(lengths[i])));
  }
  return texts;
}

std::optional<base::SharedMemory> MpiSession::share_memory(std::size_t bytes) const {
  const MpiCommunicator host = MpiCommunicator::of_this_host(world_.get());
  std::optional<base::SharedMemory> memory;
  base::SharedMemory::Address address;
  if (host.rank() == 0 && (memory = base::SharedMemory::make(bytes))) address = memory->address();
  check_mpi(MPI_Bcast(&address, sizeof address, MPI_BYTE, 0, host.get()), "sharing memory");
  if (!memory) memory = base::SharedMemory::open(address, bytes);
  check_mpi(MPI_Barrier(host.get()), "sharing memory");
  if (memory) memory->stop_offering();
  return memory;
}

void MpiSession::barrier() const { check_mpi(MPI_Barrier(world_.get()), "waiting for all ranks"); }

void MpiSession::abort(int exit_code) const noexcept {
  std::fflush(stdout);
  std::fflush(stderr);
  abort_mpi(world_.get(), exit_code);
}

void MpiSession::abort_job(int exit_code) noexcept {
  int running = 0;
  int over = 0;
  MPI_Initialized(&running);
  MPI_Finalized(&over);
  if (running && !over) abort_mpi(MPI_COMM_WORLD, exit_code);
  std::_Exit(as_failure(exit_code));
}

}  // namespace smp::d2d
