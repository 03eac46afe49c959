// d2d/lend/heap_allocator.cpp: see the header.
#include "d2d/lend/heap_allocator.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <fstream>
#include <memory>
#include <utility>

#include "d2d/lend/small_blocks.h"
#include "d2d/tensors/tensor_count.h"

namespace smp::d2d {
namespace {

template <int kSize>
void free_small(void* block) {
  c10::profiledCPUMemoryReporter().Delete(block);
  TensorCount::remove(SmallBlocks::bytes_of(kSize));
  SmallBlocks::give(kSize, block);
}

/// The deleters of small blocks, by size class.
constexpr auto kFreeSmall = []<int... kSize>(std::integer_sequence<int, kSize...>) {
  return std::array<c10::DeleterFnPtr, sizeof...(kSize)>{&free_small<kSize>...};
}
(std::make_integer_sequence<int, SmallBlocks::kSizes>());

/// The most address space of a heap. Every rank of a machine maps that of every other, and there
/// are 128 TiB of addresses.
constexpr std::uint64_t kMostAddresses = std::uint64_t{256} << 30;

std::atomic<bool> forked{false};

class Allocator final : public c10::Allocator {
 public:
  Allocator(std::unique_ptr<base::SharedHeap> heap, c10::Allocator& others)
      : heap_(std::move(heap)), others_(others) {}

  c10::DataPtr allocate(std::size_t bytes) override {
    if (bytes > 0 && bytes <= SmallBlocks::kMost) {
      const int size = SmallBlocks::size_for(bytes);
      TensorCount::add(SmallBlocks::bytes_of(size));
      return told(SmallBlocks::take(size), bytes, kFreeSmall[static_cast<std::size_t>(size)]);
    }
    void* const block = bytes >= HeapAllocator::kLeast ? heap_->allocate(bytes) : nullptr;
    if (block == nullptr) return others_.allocate(bytes);
    TensorCount::add(base::SharedHeap::whole_pages(bytes));
    return told(block, bytes, &free_any);
  }
  /// Returns a deleter that also frees blocks older than this allocator, which LibTorch gives it
  /// too.
  c10::DeleterFnPtr raw_deleter() const override { return &free_any; }
  bool is_simple_data_ptr(const c10::DataPtr& data) const override {
    const auto deleter = data.get_deleter();
    return data.get() == data.get_context() &&
           (deleter == &free_any || deleter == others_.raw_deleter() ||
            std::find(kFreeSmall.begin(), kFreeSmall.end(), deleter) != kFreeSmall.end());
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
  base::SharedHeap& heap() noexcept { return *heap_; }

 private:
  static c10::DataPtr told(void* block, std::size_t bytes, c10::DeleterFnPtr free) {
    c10::profiledCPUMemoryReporter().New(block, bytes);
    return {block, block, free, c10::Device(c10::DeviceType::CPU)};
  }
  static void free_any(void* block);

  std::unique_ptr<base::SharedHeap> heap_;
  c10::Allocator& others_;
};

/// The allocator in use, never destroyed: tensors of static duration are freed after everything
/// else.
Allocator* installed = nullptr;

void Allocator::free_any(void* block) {
  if (!installed->heap_->contains(block)) return installed->others_.raw_deleter()(block);
  c10::profiledCPUMemoryReporter().Delete(block);
  TensorCount::remove(installed->heap_->free(block));
}

/// True if the machine counts address space as memory (vm.overcommit_memory = 2): then no child of
/// a fork() could have its own.
bool counts_addresses() noexcept {
  std::ifstream setting("/proc/sys/vm/overcommit_memory");
  int value = 0;
  return setting >> value && value == 2;
}

/// Returns the bytes of address space for a heap; 0: none can be had.
std::uint64_t addresses() noexcept {
  if (counts_addresses()) return 0;
  const auto pages = static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES));
  return std::min(pages * base::SharedHeap::kPage, kMostAddresses);
}

/// The reason why make_allocator() made none. It lives as long as the process.
base::MemoryRefusal& told_refusal() {
  static auto& refusal = *new base::MemoryRefusal;
  return refusal;
}

Allocator* refuse(base::MemoryRefusal refusal) {
  told_refusal() = std::move(refusal);
  return nullptr;
}

Allocator* make_allocator() {
  auto* const others = c10::GetCPUAllocator();
  if (others != c10::GetDefaultCPUAllocator() && !TensorCount::is_own(others)) {
    return refuse({"the program has set an allocator of its own for CPU tensors", {}});
  }
  const auto bytes = addresses();
  if (bytes == 0) {
    return refuse({"the machine counts addresses as memory (vm.overcommit_memory = 2)",
                   "sysctl vm.overcommit_memory=0"});
  }
  auto heap = base::SharedHeap::make(bytes);
  if (!heap) return refuse(base::refusal_to_make(errno, bytes, base::longest_file()));
  return new Allocator(std::move(heap), *others);
}

}  // namespace

base::SharedHeap* HeapAllocator::install() {
  static const bool once = [] {
    installed = make_allocator();
    if (installed == nullptr) return false;
    c10::SetCPUAllocator(installed);
    ::pthread_atfork([] { installed->heap().before_fork(); },
                     [] { installed->heap().after_fork_in_parent(); },
                     [] {
                       installed->heap().after_fork_in_child();
                       forked = true;
                     });
    return true;
  }();
  return once ? &installed->heap() : nullptr;
}

const base::MemoryRefusal& HeapAllocator::refusal() noexcept { return told_refusal(); }

bool HeapAllocator::in_forked_child() noexcept { return forked.load(std::memory_order_relaxed); }

}  // namespace smp::d2d
