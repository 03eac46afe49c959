// fiber/scheduling_algorithm.h: our scheduling algorithm under Boost.Fiber: priorities, and the
// lazy exchange of LibTorch's thread-local state (docs/design.md, What travels with a fiber).
// Private to the fiber scheduler.
#pragma once

#include <ATen/ThreadLocalState.h>
#include <boost/fiber/all.hpp>

#include <chrono>
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "fiber/scheduler.h"
#include "fiber/torch_state.h"

namespace smp::fiber {

/// A fiber's own data, kept by Boost beside its context.
struct FiberProperties : boost::fibers::fiber_properties {
  explicit FiberProperties(boost::fibers::context* context) noexcept : fiber_properties(context) {
    fiber.priority = std::exchange(newborn_priority, 0);
  }
  /// Boost creates a fiber's properties when it first becomes ready, inside spawn().
  inline static thread_local Priority newborn_priority = 0;

  Fiber fiber;
  base::FiberSlots slots{};
  std::optional<TorchState> torch;
  ExceptionGlobals exceptions;
};

/// Tells the fiber's Activity, if any, whether the fiber has the thread.
inline void notify_activity(const Fiber& fiber, bool running) noexcept {
  if (fiber.activity != nullptr) fiber.activity->on_switch(running);
}

/// Picks ready fibers by (priority, arrival); in simulated time at random. The dispatcher, which
/// frees terminated fibers and then idles, runs only when nothing else is ready.
class FiberAlgorithm final
    : public boost::fibers::algo::algorithm_with_properties<FiberProperties> {
 public:
  using Context = boost::fibers::context;

  explicit FiberAlgorithm(Scheduler::State& state);

  void awakened(Context* context, FiberProperties&) noexcept override;
  Context* pick_next() noexcept override;
  bool has_ready_fibers() const noexcept override { return !ready_.empty() || dispatcher_ready_; }
  void suspend_until(const std::chrono::steady_clock::time_point&) noexcept override;
  void notify() noexcept override {}

  bool fiber_is_ready() const noexcept { return !ready_.empty(); }
  bool someone_goes_before(Priority priority);
  /// Sets the stack size of the fibers spawned from now on, which the sanitizer must know.
  void set_stack_bytes(std::size_t bytes) noexcept { stack_bytes_ = bytes; }

 private:
  FiberProperties& properties_of(Context* context);
  Context* take_next() noexcept;
  std::vector<Context*>::iterator choose() noexcept;
  void leave(Context* leaving) noexcept;
  void enter(Context* next) noexcept;

  Scheduler::State& state_;
  std::vector<Context*> ready_;
  Context* dispatcher_ = nullptr;
  bool dispatcher_ready_ = false;
  Context* owner_ = nullptr;  // the fiber whose LibTorch state is installed
  at::ThreadLocalState clean_;
  TorchState fresh_ = TorchState::capture();  // of a new fiber
  std::size_t stack_bytes_ = 0;
  base::FiberSlots of_nobody_{};  // while the dispatcher runs
};

}  // namespace smp::fiber
