// base/fiber_local.h: pointers that belong to what a thread is doing rather than to the thread, so
// that they travel with a fiber: whose rank's code runs, who serves its module calls. The fiber
// layer exchanges them at every switch by one assignment; code without fibers uses them like
// thread_local.
#pragma once

#include <array>
#include <cstddef>
#include <type_traits>

namespace smp::base {

/// The pointers of one fiber, or of a thread without fibers.
using FiberSlots = std::array<void*, 16>;

/// The place of the running code's pointers. Only the fiber layer assigns to it.
FiberSlots*& current_fiber_slots() noexcept;

namespace detail {
/// Returns the slot for the next FiberLocal. Called before main, or while a library is loaded.
std::size_t take_fiber_slot();
}  // namespace detail

/// A pointer with one value per fiber; nullptr until set. What it points to is not owned. Make it
/// an object of static storage; there is room for ten in a process. Threads: any, each sees its
/// own. A new fiber starts with the pointers that whoever spawns it gives it.
template <class T>
class FiberLocal {
 public:
  FiberLocal() : slot_(detail::take_fiber_slot()) {}
  FiberLocal(const FiberLocal&) = delete;
  FiberLocal& operator=(const FiberLocal&) = delete;

  T* get() const noexcept { return static_cast<T*>((*current_fiber_slots())[slot_]); }
  void set(T* value) const noexcept {
    (*current_fiber_slots())[slot_] = const_cast<std::remove_const_t<T>*>(value);
  }

 private:
  std::size_t slot_;
};

/// Sets a fiber-local pointer while it lives.
template <class T>
class FiberLocalScope {
 public:
  FiberLocalScope(const FiberLocal<T>& local, T* value) : local_(local), outer_(local.get()) {
    local_.set(value);
  }
  ~FiberLocalScope() { local_.set(outer_); }
  FiberLocalScope(const FiberLocalScope&) = delete;
  FiberLocalScope& operator=(const FiberLocalScope&) = delete;

 private:
  const FiberLocal<T>& local_;
  T* outer_;
};

}  // namespace smp::base
