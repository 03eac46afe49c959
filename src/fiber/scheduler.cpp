// fiber/scheduler.cpp: fibers that wait, give way, start and end.
#include "fiber/scheduler.h"

#include <ATen/Parallel.h>
#include <sys/prctl.h>
#include <boost/fiber/all.hpp>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <utility>

#include "base/check.h"
#include "fiber/fault_report.h"
#include "fiber/scheduler_state.h"
#include "fiber/scheduling_algorithm.h"
#include "fiber/sim_clock.h"
#include "fiber/stack_pool.h"

namespace smp::fiber {
namespace {

using Context = boost::fibers::context;

thread_local Scheduler* thread_scheduler = nullptr;

Describe describe_process = nullptr;

/// Writes what the thread is doing, for fault reports. Runs in a signal handler.
void describe_thread(char* text, std::size_t size) {
  if (describe_process != nullptr) describe_process(text, size);
  if (*text != '\0') return;
  const auto* fiber = current_fiber();
  if (fiber != nullptr && fiber->activity != nullptr) fiber->activity->describe(text, size);
}

void require_that_it_may_wait(const WaitReason& reason) {
  SMP_REQUIRE(!at::in_parallel_region(), "a fiber cannot wait for ", reason.what,
              " inside at::parallel_for: call ",
              *reason.module_path == 0 ? "what waits" : reason.module_path, " outside of it");
}

}  // namespace

// ---- waiting -----------------------------------------------------------------------------------

void Event::signal() noexcept {
  set_ = true;
  if (auto* waiter = std::exchange(waiter_, nullptr)) {
    Context::active()->schedule(static_cast<Context*>(waiter));
  }
}

void Event::wait(const WaitReason& reason) {
  if (std::exchange(set_, false)) return;
  require_that_it_may_wait(reason);
  auto& state = *Scheduler::instance().state_;
  auto& own = *current_fiber();
  notify_activity(own, false);
  own.waiting = &reason;
  own.waiting_since = state.clock().now();
  state.waiting.push_back(&own);
  state.spin_until(set_, own.waiting_since);
  suspend_until_set();
  std::erase(state.waiting, &own);
  own.waiting = nullptr;
  notify_activity(own, true);
}

void Event::rest(const WaitReason& reason) {
  auto& own = *current_fiber();
  own.waiting = &reason;
  auto& scheduler = Scheduler::instance();
  scheduler.state_->spin_until(set_, scheduler.clock().now());
  const bool by_itself = set_;
  suspend_until_set();
  own.waiting = nullptr;
  // Whom the scheduler wakes is the first among those that are ready.
  if (by_itself) scheduler.yield_to_those_before(own.priority);
}

void Event::suspend_until_set() {
  while (!set_) {
    waiter_ = Context::active();
    Context::active()->suspend();
  }
  set_ = false;
}

// ---- the scheduler -----------------------------------------------------------------------------

/// A thread-local object that is made after Boost's scheduler, which waits in its destructor for
/// all fibers, and ends before it. Called by exit(), or at the end of a thread.
class Scheduler::EndOfThread {
 public:
  explicit EndOfThread(State& state) noexcept : state_(state) {}
  ~EndOfThread() { state_.abandon_fibers(); }
  EndOfThread(const EndOfThread&) = delete;
  EndOfThread& operator=(const EndOfThread&) = delete;

 private:
  State& state_;
};

Scheduler::Scheduler() : state_(std::make_unique<State>()) {
  // Short sleeps are meant: the default slack of 50 us would double them.
  prctl(PR_SET_TIMERSLACK, 1);
  install_fault_report(describe_thread);
  boost::fibers::use_scheduling_algorithm<FiberAlgorithm>(*state_);
}

Scheduler::~Scheduler() = default;

Scheduler& Scheduler::install() {
  // Lives as long as the thread's Boost scheduler, which refers to it until the thread ends.
  if (thread_scheduler == nullptr) thread_scheduler = new Scheduler();
  thread_local const EndOfThread before_that_of_boost(*thread_scheduler->state_);
  static_cast<void>(before_that_of_boost);
  return *thread_scheduler;
}

Scheduler& Scheduler::instance() {
  SMP_ASSERT(thread_scheduler != nullptr, "no fiber scheduler on this thread");
  return *thread_scheduler;
}

bool Scheduler::installed() noexcept { return thread_scheduler != nullptr; }
void Scheduler::set_description(Describe describe) noexcept { describe_process = describe; }

void Scheduler::set_idle_policy(const IdlePolicy& policy) { state_->idler.set_policy(policy); }

void Scheduler::set_doorbell(base::Doorbell* doorbell) { state_->idler.set_doorbell(doorbell); }
void Scheduler::set_simulation(SimClock* sim) { state_->simulation = sim; }
const base::Clock& Scheduler::clock() const noexcept { return state_->clock(); }
std::size_t Scheduler::live_fibers() const noexcept { return state_->live; }
bool Scheduler::any_waiting() const noexcept { return !state_->waiting.empty(); }
bool Scheduler::any_waiting_for_peer() const noexcept {
  return std::any_of(state_->waiting.begin(), state_->waiting.end(),
                     [](const Fiber* fiber) { return fiber->waiting->peer >= 0; });
}
bool Scheduler::oversubscribed() const noexcept { return state_->idler.oversubscribed(); }
bool Scheduler::simulated() const noexcept { return state_->simulation != nullptr; }
bool Scheduler::poll_all() noexcept { return state_->poll_all(); }

std::vector<Scheduler::Wait> Scheduler::waits() const { return state_->waits(); }
std::vector<std::string> Scheduler::waiting_report() const { return state_->waiting_report(); }

void Scheduler::set_deadlock_handler(std::function<void()> handler) {
  state_->on_deadlock = std::move(handler);
}

std::shared_ptr<void> Scheduler::add_poll(Poll poll) {
  auto entry = std::make_shared<Poll>(std::move(poll));
  state_->polls.push_back(entry);
  return {entry.get(), [state = state_.get(), entry](void*) { std::erase(state->polls, entry); }};
}

void Scheduler::spawn(std::function<void()> body, const base::FiberSlots& slots,
                      std::size_t stack_bytes, Priority priority) {
  auto& stacks = state_->stacks.try_emplace(stack_bytes, stack_bytes).first->second;
  state_->algorithm->set_stack_bytes(stack_bytes);
  FiberProperties::newborn_priority = priority;
  boost::fibers::fiber fiber(boost::fibers::launch::post, std::allocator_arg, stacks,
                             [this, slots, body = std::move(body)]() mutable {
                               *base::current_fiber_slots() = slots;
                               auto* const self = Context::active();
                               state_->begun.insert(self);
                               try {
                                 body();
                                 body = nullptr;
                               } catch (const std::exception& error) {
                                 std::fprintf(stderr, "smp: an exception left a fiber: %s\n",
                                              error.what());
                                 std::terminate();
                               }
                               state_->begun.erase(self);
                               --state_->live;
                             });
  ++state_->live;
  fiber.detach();
}

void Scheduler::give_up() {
  --state_->live;
  // Boost waits at the thread's end for every worker fiber that is linked.
  state_->begun.erase(Context::active());
  Context::active()->worker_unlink();
  for (;;) Context::active()->suspend();
}

void Scheduler::yield() { boost::this_fiber::yield(); }

bool Scheduler::yield_to_those_before(Priority priority) {
  if (!state_->algorithm->someone_goes_before(priority)) return false;
  auto& own = *current_fiber();
  notify_activity(own, false);
  while (state_->algorithm->someone_goes_before(priority)) yield();
  notify_activity(own, true);
  return true;
}

void Scheduler::sleep_for(base::Nanoseconds duration, const WaitReason& reason) {
  require_that_it_may_wait(reason);  // before a timer knows of the event
  Event woken;
  if (auto* sim = state_->simulation) {
    sim->at(sim->now() + duration, [&woken] { woken.signal(); });
  } else {
    state_->timers.emplace(state_->steady.now() + duration, &woken);
  }
  woken.wait(reason);
}

}  // namespace smp::fiber
