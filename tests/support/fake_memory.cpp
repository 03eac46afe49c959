// tests/support/fake_memory.cpp: see the header.
#include "support/fake_memory.h"

#include <c10/util/Exception.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>

namespace smp::support {
namespace {

char* reserve(std::size_t bytes, int access) {
  void* const start =
      ::mmap(nullptr, bytes, access, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  TORCH_CHECK(start != MAP_FAILED, "no address space for the fake device");
  return static_cast<char*>(start);
}

}  // namespace

FakeMemory::FakeMemory()
    : shown_(reserve(kBytes, PROT_NONE)), real_(reserve(kBytes, PROT_READ | PROT_WRITE)) {
  add_free(0, kBytes);
}

void* FakeMemory::allocate(std::size_t bytes) {
  if (bytes == 0) return nullptr;
  const auto wanted = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  const std::lock_guard lock(mutex_);
  const auto found = by_size_.lower_bound({wanted, 0});
  TORCH_CHECK(wanted >= bytes && found != by_size_.end(), "fake device out of memory: ", bytes,
              " bytes wanted, ", kBytes - live_, " free");
  const auto [size, offset] = *found;
  remove_free(offset, size);
  if (size > wanted) add_free(offset + wanted, size - wanted);
  taken_.emplace(offset, wanted);
  live_ += wanted;
  most_ = std::max(most_, live_);
  poison(offset, wanted);
  return shown_ + offset;
}

void FakeMemory::free(void* address) {
  if (address == nullptr) return;
  const std::lock_guard lock(mutex_);
  const auto found = taken_.find(static_cast<std::size_t>(static_cast<char*>(address) - shown_));
  TORCH_INTERNAL_ASSERT(found != taken_.end(), "not a block of the fake device");
  const auto [offset, size] = *found;
  taken_.erase(found);
  live_ -= size;
  poison(offset, size);
  join(offset, size);
}

void* FakeMemory::real(const void* address) const noexcept {
  const auto* const place = static_cast<const char*>(address);
  if (place < shown_ || place >= shown_ + kBytes) return const_cast<void*>(address);
  return real_ + (place - shown_);
}

std::size_t FakeMemory::most() {
  const std::lock_guard lock(mutex_);
  return most_;
}

void FakeMemory::forget_most() {
  const std::lock_guard lock(mutex_);
  most_ = live_;
}

std::size_t FakeMemory::live() {
  const std::lock_guard lock(mutex_);
  return live_;
}

void FakeMemory::poison(std::size_t offset, std::size_t size) {
  std::memset(real_ + offset, 0xEE, size);
}

void FakeMemory::add_free(std::size_t offset, std::size_t size) {
  free_.emplace(offset, size);
  by_size_.emplace(size, offset);
}

void FakeMemory::remove_free(std::size_t offset, std::size_t size) {
  free_.erase(offset);
  by_size_.erase({size, offset});
}

void FakeMemory::join(std::size_t offset, std::size_t size) {
  auto next = free_.lower_bound(offset);
  if (next != free_.begin()) {
    const auto [start, bytes] = *std::prev(next);
    if (start + bytes == offset) {
      remove_free(start, bytes);
      offset = start;
      size += bytes;
    }
  }
  if (next != free_.end() && next->first == offset + size) {
    const auto bytes = next->second;
    remove_free(offset + size, bytes);
    size += bytes;
  }
  add_free(offset, size);
}

}  // namespace smp::support
