// d2d/job/machine_wires.cpp: see the header.
#include "d2d/job/machine_wires.h"

#include <mpi.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/log.h"
#include "base/memory/cross_memory.h"
#include "base/memory/shared_memory.h"
#include "d2d/lend/heap_allocator.h"
#include "d2d/wire/wire_probe.h"
#include "d2d/wires/mpi/mpi_communicator.h"

namespace smp::d2d {
namespace {

bool all_say(bool yes, const MpiCommunicator& ranks) {
  int all = yes ? 1 : 0;
  check_mpi(MPI_Allreduce(MPI_IN_PLACE, &all, 1, MPI_INT, MPI_MIN, ranks.get()), "agreeing");
  return all == 1;
}

/// Maps `bytes` of each rank of `host`, in order; fewer where the machine refuses some. All of them
/// call it, and go on offering their own.
/// @param refusal  set to what was refused to this rank; a refusal on another rank is reported
/// there
std::vector<base::SharedMemory> exchange_memory(std::size_t bytes, const MpiCommunicator& host,
                                                base::MemoryRefusal& refusal) {
  auto own = base::SharedMemory::make(bytes);
  if (!own) refusal = base::refusal_to_make(errno, bytes, base::longest_file());
  const auto addresses =
      all_gather(own ? own->address() : base::SharedMemory::Address(), host, "sharing memory");
  std::vector<base::SharedMemory> all;
  for (int i = 0; i < host.size(); ++i) {
    const auto& of_rank = addresses[static_cast<std::size_t>(i)];
    auto memory = i == host.rank() ? std::exchange(own, std::nullopt)
                                   : base::SharedMemory::open(of_rank, bytes);
    const bool offered = of_rank.file != 0;
    if (!memory && offered && refusal.reason.empty()) refusal = base::refusal_to_open(errno);
    if (memory) all.push_back(std::move(*memory));
  }
  return all;
}

/// Returns the processes that made `memory`.
std::vector<std::int64_t> processes_of(const std::vector<base::SharedMemory>& memory) {
  std::vector<std::int64_t> processes;
  processes.reserve(memory.size());
  for (const auto& each : memory) processes.push_back(each.address().process);
  return processes;
}

/// Returns true if this process can read the memory of the others, by really reading some of each.
/// All ranks of `host` call it.
bool can_read_memory_of(const std::vector<std::int64_t>& processes, const MpiCommunicator& host) {
  const std::int64_t& own = processes[static_cast<std::size_t>(host.rank())];
  const auto addresses =
      all_gather(reinterpret_cast<std::uint64_t>(&own), host, "reading memory of other ranks");
  bool can = true;
  for (std::size_t i = 0; i < processes.size(); ++i) {
    std::int64_t read = 0;
    can = can &&
          base::read_process_memory(processes[i], addresses[i],
                                    std::as_writable_bytes(std::span(&read, 1))) &&
          read == processes[i];
  }
  check_mpi(MPI_Barrier(host.get()), "reading memory of other ranks");  // what is read stays
  return can;
}

/// Warns if something was refused to this rank. The other ranks only follow, and say nothing.
/// @param loss     the thing that the job does without
/// @param setting  the setting that asks for the same; empty: none
void warn_of(const base::MemoryRefusal& refusal, const std::string& loss,
             const std::string& setting, const WarnOfRoutes& warn) {
  if (refusal.reason.empty()) return;
  auto text = base::concat(loss, ": ", refusal.reason);
  if (!refusal.remedy.empty()) text += "; remedy: " + refusal.remedy;
  if (!setting.empty()) text += base::concat("; or ", setting, " if that is wanted");
  if (warn) return warn(text);
  base::log(base::LogLevel::kWarning, text);
}

/// Makes the loans of this process. @return nullptr: see `refusal`
std::unique_ptr<Loans> make_loans(base::MemoryRefusal& refusal) {
  auto* const heap = HeapAllocator::install();
  if (heap == nullptr) {
    refusal = HeapAllocator::refusal();
    return nullptr;
  }
  auto loans = Loans::make(heap);
  if (!loans) refusal = base::refusal_to_make(errno, 0, base::longest_file());
  return loans;
}

}  // namespace

std::unique_ptr<HostShmWire> share_rings(const MpiSession& job, const HostShmOptions& options,
                                         const HostShmWire* beside, base::MemoryRefusal& refusal) {
  const MpiCommunicator host = MpiCommunicator::of_this_host(job.world().get());
  auto segments = exchange_memory(HostShmSegment::bytes_for(host.size(), options), host, refusal);
  // All have it, or nobody uses it: ranks number their wires alike.
  if (!all_say(segments.size() == static_cast<std::size_t>(host.size()), job.world()))
    return nullptr;
  HostShmProcesses processes{processes_of(segments)};
  processes.may_read_each_other = all_say(can_read_memory_of(processes.numbers, host), host);
  segments[static_cast<std::size_t>(host.rank())].stop_offering();
  std::unique_ptr<HostShmWire> wire;
  try {
    wire = std::make_unique<HostShmWire>(job.rank(), job.ranks_of_this_host(), std::move(segments),
                                         options, std::move(processes), beside);
  } catch (const std::exception& error) {  // no thread to watch processes, say
    base::log(base::LogLevel::kWarning, "rank ", job.rank(), ": no shared memory: ", error.what());
  }
  return all_say(wire != nullptr, job.world()) ? std::move(wire) : nullptr;
}

std::unique_ptr<HostShmWire> connect_host_shm(const MpiSession& job, const WarnOfRoutes& warn,
                                              const InsteadOfMemory& instead) {
  base::MemoryRefusal refusal;
  auto wire = share_rings(job, {}, nullptr, refusal);
  warn_of(refusal,
          base::concat("ranks of this machine cannot share memory, so the whole job uses ",
                       instead.name, ", which is slower"),
          instead.setting, warn);
  if (!wire) return nullptr;
  const auto wrong = probe(*wire, kProbePatience);
  if (!wrong.empty()) {
    base::log(base::LogLevel::kWarning, "shared memory does not work here, ", instead.name,
              " is used: ", wrong);
  }
  if (!all_say(wrong.empty(), job.world())) return nullptr;
  return wire;
}

std::unique_ptr<Loans> connect_loans(const MpiSession& job, const WarnOfRoutes& warn) {
  const MpiCommunicator host = MpiCommunicator::of_this_host(job.world().get());
  base::MemoryRefusal refusal;
  auto loans = make_loans(refusal);
  const auto offers = all_gather(loans ? loans->offer() : Loans::Offer(), host, "offering memory");
  const bool connected = loans && loans->connect(job.rank(), job.ranks_of_this_host(), offers);
  const bool all_offer = std::all_of(offers.begin(), offers.end(),
                                     [](const auto& offer) { return offer.heap_bytes > 0; });
  if (!connected && all_offer) refusal = base::refusal_to_open(errno);
  warn_of(refusal, "ranks of this machine copy large tensors instead of lending them",
          "lend_tensors = false", warn);
  if (!all_say(connected, host)) return nullptr;
  loans->stop_offering();
  return loans;
}

}  // namespace smp::d2d
