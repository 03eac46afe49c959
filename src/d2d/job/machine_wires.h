// d2d/job/machine_wires.h: what ranks of one machine share: rings and tensors that they lend each
// other. Where one machine of the job refuses rings, no rank uses them; whether tensors are lent is
// each machine's own affair. Threads: the one that made the MpiSession. All ranks of the job call
// each of these.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/memory/shared_memory_refusal.h"
#include "d2d/job/mpi_session.h"
#include "d2d/lend/loans.h"
#include "d2d/wires/shm/host_shm_wire.h"

namespace smp::d2d {

/// Takes what this rank warns about, if it is the one that refuses something: a text that ranks
/// with the same trouble have alike. Without one it is logged at once.
using WarnOfRoutes = std::function<void(const std::string&)>;

/// What carries the bytes where shared memory does not.
struct InsteadOfMemory {
  std::string name = "MPI";
  std::string setting = "transport = mpi";  ///< that asks for it alone; empty: none does
};

/// A wire between the ranks of this machine (there may be no others) through memory that they
/// share, tried with real bytes; nothing, and a warning, if some machine of the job refuses it.
/// @param instead  for the warning
std::unique_ptr<HostShmWire> connect_host_shm(const MpiSession& job, const WarnOfRoutes& warn = {},
                                              const InsteadOfMemory& instead = {});
/// Such a wire, not tried yet.
/// @param beside   another one of this rank, whose doorbell it rings as well; nullptr: none
/// @param refusal  what was refused to this rank
std::unique_ptr<HostShmWire> share_rings(const MpiSession& job, const HostShmOptions& options,
                                         const HostShmWire* beside, base::MemoryRefusal& refusal);
/// Memory of this machine's ranks that they lend each other; nothing, and a warning, if one of them
/// refuses. Called while nobody allocates tensors: from then on those of this process lie there
/// (d2d/lend/heap_allocator.h).
std::unique_ptr<Loans> connect_loans(const MpiSession& job, const WarnOfRoutes& warn = {});

}  // namespace smp::d2d
