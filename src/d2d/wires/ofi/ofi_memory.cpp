// d2d/wires/ofi/ofi_memory.cpp: see the header.
#include "d2d/wires/ofi/ofi_memory.h"

#include <rdma/fi_domain.h>

namespace smp::d2d {

OfiMemory OfiMemory::part(std::uint64_t offset) const {
  OfiMemory part;
  part.of_whole_ = region();
  part.address_ = address_ + offset;
  return part;
}

void* OfiMemory::descriptor() const noexcept {
  return region() != nullptr ? ::fi_mr_desc(region()) : nullptr;
}

std::uint64_t OfiMemory::key() const noexcept { return ::fi_mr_key(region()); }

}  // namespace smp::d2d
