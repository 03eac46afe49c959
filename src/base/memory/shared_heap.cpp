// base/memory/shared_heap.cpp: best fit, and what becomes of free memory.
#include "base/memory/shared_heap.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <optional>
#include <utility>

#include "base/check.h"

namespace smp::base {
namespace {

/// The number of calls of free() after which the memory kept for a peak that did not come again has
/// shrunk to about a third.
constexpr std::size_t kMemoryOfPeaks = 4096;

}  // namespace

std::unique_ptr<SharedHeap> SharedHeap::make(std::size_t bytes) noexcept {
  auto memory = SharedMemory::make(bytes);
  return memory ? std::make_unique<SharedHeap>(std::move(*memory)) : nullptr;
}

SharedHeap::SharedHeap(SharedMemory memory) : memory_(std::move(memory)) {
  memory_.keep_from_dumps();
  add_free(0, {size(), {}});
}

void* SharedHeap::allocate(std::size_t bytes) {
  const std::size_t needed = whole_pages(bytes);
  const std::lock_guard lock(mutex_);
  const auto fit = sizes_.lower_bound({needed, 0});
  if (fit == sizes_.end()) return nullptr;
  const auto offset = fit->second;
  Range range = take_free(free_.find(offset));
  if (range.size > needed) {
    const auto rest = std::max(range.touched.begin, offset + needed);
    const bool any = rest < range.touched.end;
    add_free(offset + needed,
             {range.size - needed, any ? Touched{rest, range.touched.end} : Touched{}});
  }
  used_.emplace(offset, needed);
  used_bytes_ += needed;
  recently_used_ = std::max(recently_used_, used_bytes_);
  return start() + offset;
}

std::size_t SharedHeap::free(void* block) {
  const std::lock_guard lock(mutex_);
  const auto found = used_.find(offset(block));
  SMP_ASSERT(found != used_.end(), "this heap has no block at ", block);
  auto offset = found->first;
  const auto bytes = found->second;
  used_.erase(found);
  used_bytes_ -= bytes;
  recently_used_ = std::max(used_bytes_, recently_used_ - recently_used_ / kMemoryOfPeaks);
  Range range{bytes, {offset, offset + bytes}};
  const auto next = free_.find(offset + bytes);
  if (next != free_.end()) {
    const auto behind = take_free(next);
    range.size += behind.size;
    range.touched = joined(range.touched, behind.touched);
  }
  const auto at = free_.lower_bound(offset);
  if (at != free_.begin()) {
    const auto previous = std::prev(at);
    if (previous->first + previous->second.size == offset) {
      offset = previous->first;
      const auto before = take_free(previous);
      range.size += before.size;
      range.touched = joined(before.touched, range.touched);
    }
  }
  add_free(offset, range);
  if (used_bytes_ + kept_bytes_ > recently_used_ + kSlack) give_back_beyond(recently_used_);
  return bytes;
}

void SharedHeap::trim() {
  const std::lock_guard lock(mutex_);
  give_back_beyond(0);
}

SharedHeap::Touched SharedHeap::joined(const Touched& one, const Touched& other) noexcept {
  if (one.bytes() == 0) return other;
  if (other.bytes() == 0) return one;
  return {std::min(one.begin, other.begin), std::max(one.end, other.end)};
}

void SharedHeap::add_free(std::size_t offset, Range range) {
  free_.emplace(offset, range);
  sizes_.emplace(range.size, offset);
  kept_bytes_ += range.touched.bytes();
}

SharedHeap::Range SharedHeap::take_free(Ranges::iterator range) {
  const auto taken = range->second;
  kept_bytes_ -= taken.touched.bytes();
  sizes_.erase({taken.size, range->first});
  free_.erase(range);
  return taken;
}

/// Gives free memory back until at most `bytes` are used or kept. Large ranges go first, since each
/// costs a call into the kernel.
void SharedHeap::give_back_beyond(std::size_t bytes) {
  for (auto each = sizes_.rbegin(); each != sizes_.rend() && used_bytes_ + kept_bytes_ > bytes;
       ++each) {
    auto& range = free_.find(each->second)->second;
    if (range.touched.bytes() == 0) continue;
    // In a forked child, whose memory is its own, this fails, and all of it stays.
    if (::madvise(start() + each->second, range.size, MADV_REMOVE) != 0) return;
    kept_bytes_ -= range.touched.bytes();
    range.touched = {};
  }
}

SharedHeap::Usage SharedHeap::usage() const {
  const std::lock_guard lock(mutex_);
  return {used_bytes_, kept_bytes_};
}

void SharedHeap::after_fork_in_child() noexcept {
  if (std::exchange(private_, true)) return mutex_.unlock();  // the machine has copied it
  void* const copy =
      ::mmap(start(), size(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE,
             static_cast<int>(memory_.address().descriptor), 0);
  if (copy == MAP_FAILED) std::abort();  // it would write to the parent's memory
  static_cast<void>(::madvise(start(), size(), MADV_DONTDUMP));
  mutex_.unlock();
}

}  // namespace smp::base
