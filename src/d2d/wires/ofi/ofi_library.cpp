// d2d/wires/ofi/ofi_library.cpp: see the header.
#include "d2d/wires/ofi/ofi_library.h"

#include <cstdlib>

#include "d2d/wires/loaded_library.h"

namespace smp::d2d {

OfiLibrary load_ofi(const char* file) {
  // The trial run of a model is a child of this process (trial/child_process.h), and EFA ends a
  // process that forks unless it was told before.
  ::setenv("FI_EFA_FORK_SAFE", "1", /*overwrite=*/0);
  const LoadedLibrary fabric(file, {"libfabric", "libfabric1", "1.11"});
  OfiLibrary all{};
  fabric.load("fi_getinfo", all.getinfo);
  fabric.load("fi_freeinfo", all.freeinfo);
  fabric.load("fi_dupinfo", all.dupinfo);
  fabric.load("fi_fabric", all.fabric);
  fabric.load("fi_strerror", all.strerror);
  fabric.load("fi_version", all.version);
  return all;
}

const OfiLibrary& ofi() {
  static const OfiLibrary library = load_ofi("libfabric.so.1");
  return library;
}

}  // namespace smp::d2d
