// fiber/scheduling_algorithm.cpp: which fiber runs next, and what changes when it does.
#include "fiber/scheduling_algorithm.h"

#include <algorithm>

#include "alive/heartbeat.h"
#include "fiber/sanitizer_switch.h"
#include "fiber/scheduler_state.h"
#include "fiber/sim_clock.h"

namespace smp::fiber {
namespace {

using Context = boost::fibers::context;

thread_local Fiber* running_fiber = nullptr;

bool is_dispatcher(const Context* context) noexcept {
  return context->is_context(boost::fibers::type::dispatcher_context);
}

/// True if the fiber has ended: it has left the queue of worker fibers, and the dispatcher frees it
/// next.
bool is_terminating(Context* context) noexcept {
  return context->is_context(boost::fibers::type::worker_context) && !context->worker_is_linked();
}

}  // namespace

Fiber* current_fiber() noexcept { return running_fiber; }

FiberAlgorithm::FiberAlgorithm(Scheduler::State& state) : state_(state), owner_(Context::active()) {
  state_.algorithm = this;
  ready_.reserve(1024);
  auto& own = properties_of(owner_);
  running_fiber = &own.fiber;
  own.slots = *base::current_fiber_slots();
  base::current_fiber_slots() = &own.slots;
}

// ---- what Boost asks ---------------------------------------------------------------------------

void FiberAlgorithm::awakened(Context* context, FiberProperties&) noexcept {
  if (is_dispatcher(context)) {
    dispatcher_ = context;
    dispatcher_ready_ = true;
  } else {
    ready_.push_back(context);
  }
}

FiberAlgorithm::Context* FiberAlgorithm::pick_next() noexcept {
  Context* const leaving = Context::active();
  Context* const next = take_next();
  if (next == nullptr || next == leaving) return next;
  if (!is_dispatcher(leaving)) leave(leaving);
  sanitizer_switch(next, is_dispatcher(next) ? 0 : stack_bytes_);
  if (is_dispatcher(next)) {
    exception_globals() = {};
    running_fiber = nullptr;
    base::current_fiber_slots() = &of_nobody_;
  } else {
    enter(next);
  }
  return next;
}

void FiberAlgorithm::suspend_until(const std::chrono::steady_clock::time_point&) noexcept {
  state_.idle_once();
}

// ---- who is next -------------------------------------------------------------------------------

bool FiberAlgorithm::someone_goes_before(Priority priority) {
  return std::any_of(ready_.begin(), ready_.end(),
                     [&](Context* other) { return properties(other).fiber.priority < priority; });
}

FiberAlgorithm::Context* FiberAlgorithm::take_next() noexcept {
  if (ready_.empty()) {
    if (!dispatcher_ready_) return nullptr;
    dispatcher_ready_ = false;
    return dispatcher_;
  }
  const auto chosen = choose();
  Context* const next = *chosen;
  ready_.erase(chosen);
  return next;
}

std::vector<FiberAlgorithm::Context*>::iterator FiberAlgorithm::choose() noexcept {
  auto* simulation = state_.simulation;
  if (simulation != nullptr && simulation->random_choice) {
    const auto index = simulation->random()() % ready_.size();
    simulation->trace(index);
    return ready_.begin() + static_cast<std::ptrdiff_t>(index);
  }
  return std::min_element(ready_.begin(), ready_.end(), [this](Context* a, Context* b) {
    return properties(a).fiber.priority < properties(b).fiber.priority;
  });
}

// ---- the switch --------------------------------------------------------------------------------

FiberProperties& FiberAlgorithm::properties_of(Context* context) {
  if (context->get_properties() == nullptr) set_properties(context, new FiberProperties(context));
  return *static_cast<FiberProperties*>(context->get_properties());
}

void FiberAlgorithm::leave(Context* leaving) noexcept {
  if (is_terminating(leaving)) {
    owner_ = nullptr;
    return;
  }
  auto& own = properties_of(leaving);
  own.exceptions = exception_globals();
  notify_activity(own.fiber, false);
  owner_ = leaving;
}

/// Installs the fiber's state. LibTorch's state stays installed while the dispatcher runs (it calls
/// no LibTorch code), so it is exchanged only when a different fiber follows.
void FiberAlgorithm::enter(Context* next) noexcept {
  base::beat();
  auto& own = properties_of(next);
  if (next != owner_) {
    if (owner_ != nullptr) properties_of(owner_).torch = TorchState::capture();
    (own.torch ? *own.torch : fresh_).restore(clean_);
    own.torch.reset();
    owner_ = next;
  }
  exception_globals() = own.exceptions;
  running_fiber = &own.fiber;
  base::current_fiber_slots() = &own.slots;
  notify_activity(own.fiber, true);
}

}  // namespace smp::fiber
