// support/tensor_bytes.cpp: an allocator around LibTorch's own.
#include "support/tensor_bytes.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <mutex>
#include <unordered_map>
#include <utility>

namespace smp::support {
namespace {

/// Threads: any.
class CountingAllocator final : public c10::Allocator {
 public:
  explicit CountingAllocator(c10::Allocator& inner) : inner_(inner) {}

  c10::DataPtr allocate(std::size_t size) override {
    auto data = inner_.allocate(size);
    void* const address = data.get();
    if (address == nullptr) return data;
    const std::lock_guard lock(mutex_);
    live_ += static_cast<std::int64_t>(size);
    peak_ = std::max(peak_, live_);
    const auto device = data.device();
    blocks_.emplace(address, Block{std::move(data), size});
    return {address, address, &free_block, device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_block; }
  void copy_data(void* to, const void* from, std::size_t size) const override {
    inner_.copy_data(to, from, size);
  }

  std::int64_t live() {
    const std::lock_guard lock(mutex_);
    return live_;
  }
  std::int64_t take_peak() {
    const std::lock_guard lock(mutex_);
    return std::exchange(peak_, live_);
  }

 private:
  struct Block {
    c10::DataPtr data;
    std::size_t size;
  };

  static void free_block(void* address);
  void free(void* address) {
    if (address == nullptr) return;  // some of LibTorch's libraries do that
    const std::lock_guard lock(mutex_);
    const auto found = blocks_.find(address);
    if (found == blocks_.end()) return inner_.raw_deleter()(address);  // older than the count
    live_ -= static_cast<std::int64_t>(found->second.size);
    blocks_.erase(found);
  }

  c10::Allocator& inner_;
  std::mutex mutex_;
  std::unordered_map<void*, Block> blocks_;
  std::int64_t live_ = 0, peak_ = 0;
};

/// Never destroyed: tensors of static duration are freed after everything else.
CountingAllocator& allocator() {
  static auto* const counting = new CountingAllocator(*c10::GetCPUAllocator());
  return *counting;
}

void CountingAllocator::free_block(void* address) { allocator().free(address); }

}  // namespace

void count_tensor_bytes() { c10::SetCPUAllocator(&allocator(), /*priority=*/1); }

std::int64_t live_tensor_bytes() { return allocator().live(); }

std::int64_t take_peak_tensor_bytes() { return allocator().take_peak(); }

}  // namespace smp::support
