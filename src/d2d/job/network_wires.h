// d2d/job/network_wires.h: wires between machines, tried with real bytes. Threads: the one that
// made the MpiSession. All ranks of the job call each of these.
#pragma once

#include <cstdint>
#include <memory>

#include "d2d/job/mpi_session.h"
#include "d2d/wire/wire.h"

namespace smp::d2d {

/// Connects all ranks of the job over UCX.
/// @throws PeerLostError  UCX does not start on some rank, or carries the wrong bytes.
std::unique_ptr<Wire> connect_ucx(const MpiSession& job);
/// Does the same over libfabric.
std::unique_ptr<Wire> connect_ofi(const MpiSession& job);

/// Returns a secret by which ranks of the job know each other, told over MPI: networks carry
/// messages of anyone who has learnt an address.
std::uint64_t draw_secret(const MpiSession& job);

}  // namespace smp::d2d
