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

/// Takes a warning of this rank, if it is the one that refuses something: a text that ranks with
/// the same trouble have alike. Without it the text is logged at once.
using WarnOfRoutes = std::function<void(const std::string&)>;

/// The path that carries the bytes where shared memory does not.
struct InsteadOfMemory {
  std::string name = "MPI";
  std::string setting = "transport = mpi";  ///< the setting for it alone; empty: none
};

/// Makes a wire between the ranks of this machine (there may be no others) through memory that they
/// share, and tries it with real bytes; nullptr, with a warning, if some machine of the job refuses
/// it.
/// @param instead  for the warning
std::unique_ptr<HostShmWire> connect_host_shm(const MpiSession& job, const WarnOfRoutes& warn = {},
                                              const InsteadOfMemory& instead = {});
/// Makes such a wire, without trying it.
/// @param beside   another one of this rank, whose doorbell it rings as well; nullptr: none
/// @param refusal  set to what was refused to this rank
std::unique_ptr<HostShmWire> share_rings(const MpiSession& job, const HostShmOptions& options,
                                         const HostShmWire* beside, base::MemoryRefusal& refusal);
/// Makes memory that this machine's ranks lend each other; nullptr, with a warning, if one of them
/// refuses. Called while nobody allocates tensors: from then on those of this process lie there
/// (d2d/lend/heap_allocator.h).
std::unique_ptr<Loans> connect_loans(const MpiSession& job, const WarnOfRoutes& warn = {});

}  // namespace smp::d2d
