// d2d/wires/ofi/ofi_library.h: libfabric's functions, loaded when they are first asked for: a job
// that does not use libfabric has none of it in its process. Threads: one at a time.
#pragma once

#include <rdma/fabric.h>

namespace smp::d2d {

/// libfabric's functions, named as in fabric.h. All others are inline there: they call through the
/// objects that these make.
struct OfiLibrary {
  decltype(&::fi_getinfo) getinfo;
  decltype(&::fi_freeinfo) freeinfo;
  decltype(&::fi_dupinfo) dupinfo;
  decltype(&::fi_fabric) fabric;
  decltype(&::fi_strerror) strerror;
  decltype(&::fi_version) version;
};

/// Returns the functions. The first call loads them, and lets EFA's processes fork unless the
/// environment says otherwise (FI_EFA_FORK_SAFE).
/// @throws PeerLostError  libfabric is not installed, or lacks one of them.
const OfiLibrary& ofi();
/// Loads the functions from this file. Throws as ofi().
OfiLibrary load_ofi(const char* file);

}  // namespace smp::d2d
