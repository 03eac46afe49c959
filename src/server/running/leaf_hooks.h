// server/running/leaf_hooks.h: for whom the hooks of a leaf run. A sum may be completed by any
// fiber, so the execution that runs there says nothing about it.
#pragma once

#include <cstdint>

#include "server/running/own_passes.h"

namespace smp::fiber {
struct Fiber;
}

namespace smp::server {

/// Lives on the stack of the fiber that runs hooks of a leaf; a hook may suspend it. Threads: the
/// rank's.
class LeafHooks {
 public:
  /// @param leaf    a number that tells leaves apart, the same in every run
  /// @param passes  takes what passes give that a hook begins
  LeafHooks(std::uint32_t microbatch, std::uint32_t leaf, OwnPasses& passes) noexcept;
  ~LeafHooks();
  LeafHooks(const LeafHooks&) = delete;
  LeafHooks& operator=(const LeafHooks&) = delete;

  /// Returns the innermost of the running fiber, or nullptr.
  static const LeafHooks* current() noexcept;

  std::uint32_t microbatch() const noexcept { return microbatch_; }
  std::uint32_t leaf() const noexcept { return leaf_; }
  OwnPasses& passes() const noexcept { return passes_; }

 private:
  const std::uint32_t microbatch_;
  const std::uint32_t leaf_;
  OwnPasses& passes_;
  const fiber::Fiber* const fiber_;
  // Of all fibers of the thread, in the order in which they began.
  LeafHooks* before_;
  LeafHooks* after_ = nullptr;
};

}  // namespace smp::server
