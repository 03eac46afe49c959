// base/memory/recycling_allocator.h: memory of objects of one kind that come and go all the time.
#pragma once

#include <cstddef>
#include <new>
#include <utility>

namespace smp::base {

/// For std::allocate_shared: what is freed on a thread serves the next object of the kind there, so
/// the steady state asks for no memory. Threads: any; an object may be freed on another one.
template <class T>
class RecyclingAllocator {
 public:
  using value_type = T;
  RecyclingAllocator() = default;
  template <class U>
  RecyclingAllocator(const RecyclingAllocator<U>&) noexcept {}  // NOLINT(google-explicit-*)

  T* allocate(std::size_t count) {
    if (count != 1 || spare_ == nullptr) return static_cast<T*>(::operator new(count * sizeof(T)));
    auto* const block = spare_;
    spare_ = block->next;
    --num_spare_;
    return reinterpret_cast<T*>(block);
  }
  void deallocate(T* memory, std::size_t count) noexcept {
    if (count != 1 || num_spare_ >= kMost) return ::operator delete(memory);
    static thread_local const AtThreadsEnd free_all;
    spare_ = ::new (memory) Block{spare_};
    ++num_spare_;
  }
  friend bool operator==(const RecyclingAllocator&, const RecyclingAllocator&) { return true; }

 private:
  static constexpr std::size_t kMost = 1024;
  struct Block {
    Block* next;
  };
  /// What comes later, of static objects, is freed at once.
  struct AtThreadsEnd {
    ~AtThreadsEnd() {
      while (spare_ != nullptr) ::operator delete(std::exchange(spare_, spare_->next));
      num_spare_ = kMost;
    }
  };

  static inline thread_local Block* spare_ = nullptr;
  static inline thread_local std::size_t num_spare_ = 0;
};

}  // namespace smp::base
