// d2d/wires/ofi/ofi_memory.cpp: see the header.
#include "d2d/wires/ofi/ofi_memory.h"

#include <rdma/fi_domain.h>

namespace smp::d2d {

void* OfiMemory::descriptor() const noexcept {
  return region_ ? ::fi_mr_desc(region_.get()) : nullptr;
}

std::uint64_t OfiMemory::key() const noexcept { return ::fi_mr_key(region_.get()); }

}  // namespace smp::d2d
