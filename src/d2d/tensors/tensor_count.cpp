// d2d/tensors/tensor_count.cpp: an allocator around LibTorch's own, which asks the heap for the
// size of each block.
#include "d2d/tensors/tensor_count.h"

#include <c10/core/CPUAllocator.h>
#include <malloc.h>

#include <atomic>

namespace smp::d2d {
namespace {

std::atomic<std::int64_t> live_bytes{0}, most_bytes{0};

class CountingAllocator final : public c10::Allocator {
 public:
  explicit CountingAllocator(c10::Allocator& inner) : inner_(inner) {}

  c10::DataPtr allocate(std::size_t bytes) override {
    void* const block = inner_.raw_allocate(bytes);
    if (block != nullptr) TensorCount::add(::malloc_usable_size(block));
    return {block, block, &free_block, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_block; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    inner_.copy_data(to, from, bytes);
  }

 private:
  static void free_block(void* block);

  c10::Allocator& inner_;
};

/// Never destroyed: tensors of static duration are freed after everything else.
CountingAllocator* counting = nullptr;

void CountingAllocator::free_block(void* block) {
  if (block == nullptr) return;
  TensorCount::remove(::malloc_usable_size(block));
  counting->inner_.raw_deallocate(block);
}

}  // namespace

bool TensorCount::install() {
  static const bool once = [] {
    auto* const others = c10::GetCPUAllocator();
    if (others != c10::GetDefaultCPUAllocator()) return false;
    counting = new CountingAllocator(*others);
    c10::SetCPUAllocator(counting);
    return true;
  }();
  return once;
}

bool TensorCount::installed() noexcept { return counting != nullptr; }

bool TensorCount::is_own(const c10::Allocator* allocator) noexcept {
  return counting != nullptr && allocator == counting;
}

void TensorCount::add(std::size_t bytes) noexcept {
  const auto own = static_cast<std::int64_t>(bytes);
  const auto live = live_bytes.fetch_add(own, std::memory_order_relaxed) + own;
  auto most = most_bytes.load(std::memory_order_relaxed);
  while (live > most && !most_bytes.compare_exchange_weak(most, live, std::memory_order_relaxed)) {
  }
}

void TensorCount::remove(std::size_t bytes) noexcept {
  live_bytes.fetch_sub(static_cast<std::int64_t>(bytes), std::memory_order_relaxed);
}

std::int64_t TensorCount::live() noexcept { return live_bytes.load(std::memory_order_relaxed); }

std::int64_t TensorCount::most() noexcept { return most_bytes.load(std::memory_order_relaxed); }

void TensorCount::forget_most() noexcept { most_bytes.store(live(), std::memory_order_relaxed); }

}  // namespace smp::d2d
