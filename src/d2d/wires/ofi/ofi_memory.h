// d2d/wires/ofi/ofi_memory.h: memory that an endpoint of libfabric knows, for as long as this
// lives. Threads: one at a time.
#pragma once

#include <cstdint>
#include <utility>

#include "d2d/wires/ofi/ofi_handle.h"

namespace smp::d2d {

/// Registered memory, made by OfiEndpoint, which outlives it. Empty where the provider wants
/// nothing registered.
class OfiMemory {
 public:
  OfiMemory() = default;
  /// @param address  the number by which other ranks name its first byte
  OfiMemory(OfiHandle<fid_mr> region, std::uint64_t address)
      : region_(std::move(region)), address_(address) {}

  /// Returns a part of the same memory, for as long as this one lives.
  /// @param offset  of its first byte
  OfiMemory part(std::uint64_t offset) const;

  /// Gives up what this owns. The caller closes it.
  fid_mr* release() noexcept { return region_.release(); }
  /// Returns the name that this rank's own operations use; nullptr: none is needed.
  void* descriptor() const noexcept;
  /// Returns the key that other ranks use, if the memory is registered for their writes.
  std::uint64_t key() const noexcept;
  std::uint64_t address() const noexcept { return address_; }

 private:
  fid_mr* region() const noexcept { return region_ ? region_.get() : of_whole_; }

  OfiHandle<fid_mr> region_;
  fid_mr* of_whole_ = nullptr;  // of which this is a part
  std::uint64_t address_ = 0;
};

}  // namespace smp::d2d
