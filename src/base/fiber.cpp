// base/fiber.cpp: fibers that wait, take turns, start and end (§4.3).
#include "base/fiber.h"

#include <ATen/Parallel.h>
#include <sys/prctl.h>
#include <boost/fiber/all.hpp>

#include <cstdio>
#include <exception>
#include <utility>

#include "base/check.h"
#include "base/fiber_algorithm.h"
#include "base/fiber_state.h"
#include "base/sim_clock.h"
#include "base/stack_pool.h"

namespace smp::base {
namespace {

using Context = boost::fibers::context;

/// Of a thread that shares its core, between two looks for an answer that is due.
constexpr Nanoseconds kShortSleep = 20 * kMicrosecond;

thread_local FiberScheduler* thread_scheduler = nullptr;

void describe_running_fiber(char* text, std::size_t size) {
  const auto* fiber = current_fiber();
  if (fiber == nullptr || fiber->rank == nullptr) return;
  fiber->rank->describe(fiber->execution, text, size);
}

}  // namespace

// ---- waiting ----------------------------------------------------------------------------------

void Event::signal() noexcept {
  set_ = true;
  if (auto* waiter = std::exchange(waiter_, nullptr)) {
    Context::active()->schedule(static_cast<Context*>(waiter));
  }
}

void Event::wait(const WaitReason& reason) {
  if (std::exchange(set_, false)) return;
  SMP_REQUIRE(!at::in_parallel_region(), "a fiber cannot wait for ", reason.what,
              " inside at::parallel_for: call ", reason.module_path, " outside of it");
  FiberScheduler::instance().wait_for(*this, reason);
}

void Event::rest(const WaitReason& reason) {
  auto& own = *current_fiber();
  own.waiting = &reason;
  FiberScheduler::instance().suspend_until_set(*this);
  own.waiting = nullptr;
}

void FiberScheduler::wait_for(Event& event, const WaitReason& reason) {
  auto& own = *current_fiber();
  notify_rank(own, false);
  own.waiting = &reason;
  own.passing_on |= reason.peer >= 0;
  own.waiting_since = clock().now();
  state_->waiting.push_back(&own);
  spin_for(event);
  suspend_until_set(event);
  std::erase(state_->waiting, &own);
  own.waiting = nullptr;
  notify_rank(own, true);
}

void FiberScheduler::suspend_until_set(Event& event) {
  while (!event.set_) {
    event.waiter_ = Context::active();
    Context::active()->suspend();
  }
  event.set_ = false;
}

/// The waiting fiber polls itself while no other fiber is ready: an answer that comes soon costs no
/// switch.
void FiberScheduler::spin_for(const Event& event) {
  auto& state = *state_;
  if (state.simulation != nullptr) return;
  const auto start = state.steady.now();
  const auto limit = state.idler.spin();
  do {
    state.poll_all();
  } while (!event.set_ && !state.algorithm->fiber_is_ready() && state.steady.now() - start < limit);
}

// ---- turns ------------------------------------------------------------------------------------

void FiberScheduler::take_turn() {
  auto& own = *current_fiber();
  auto& state = *state_;
  if (!state.turn_is_due(own)) return;
  own.passing_on = false;
  notify_rank(own, false);
  const auto start = state.steady.now();
  const auto patience = state.patience(start);
  do {
    if (state.simulation == nullptr) state.poll_all();
    while (state.algorithm->someone_goes_before(own)) yield();
    state.last_turn = state.steady.now();
    if (patience > 0 && state.idler.oversubscribed()) sleep_briefly(kShortSleep);
  } while (state.last_turn - start < patience);
  notify_rank(own, true);
}

// ---- the scheduler ----------------------------------------------------------------------------

FiberScheduler::FiberScheduler() : state_(std::make_unique<State>()) {
  // Short sleeps are meant: the default slack of 50 us would double them.
  prctl(PR_SET_TIMERSLACK, 1);
  install_overflow_report(describe_running_fiber);
  boost::fibers::use_scheduling_algorithm<FiberAlgorithm>(*state_);
}

FiberScheduler::~FiberScheduler() = default;

FiberScheduler& FiberScheduler::install() {
  // Lives as long as the thread's Boost scheduler, which refers to it until the thread ends.
  if (thread_scheduler == nullptr) thread_scheduler = new FiberScheduler();
  return *thread_scheduler;
}

FiberScheduler& FiberScheduler::instance() {
  SMP_ASSERT(thread_scheduler != nullptr, "no fiber scheduler on this thread");
  return *thread_scheduler;
}

bool FiberScheduler::installed() noexcept { return thread_scheduler != nullptr; }

void FiberScheduler::set_idle_policy(const IdlePolicy& policy) { state_->idler.set_policy(policy); }
void FiberScheduler::set_simulation(SimClock* sim) { state_->simulation = sim; }
const Clock& FiberScheduler::clock() const noexcept { return state_->clock(); }
std::size_t FiberScheduler::live_fibers() const noexcept { return state_->live; }
bool FiberScheduler::any_waiting() const noexcept { return !state_->waiting.empty(); }
bool FiberScheduler::poll_all() noexcept { return state_->poll_all(); }

std::vector<std::string> FiberScheduler::waiting_report() const { return state_->waiting_report(); }

void FiberScheduler::set_deadlock_handler(std::function<void()> handler) {
  state_->on_deadlock = std::move(handler);
}

std::shared_ptr<void> FiberScheduler::add_poll(Poll poll) {
  auto entry = std::make_shared<Poll>(std::move(poll));
  state_->polls.push_back(entry);
  return {entry.get(), [state = state_.get(), entry](void*) { std::erase(state->polls, entry); }};
}

void FiberScheduler::spawn(std::function<void()> body, RankContext* rank, std::size_t stack_bytes,
                           Priority priority) {
  auto& stacks = state_->stacks.try_emplace(stack_bytes, stack_bytes).first->second;
  state_->algorithm->set_stack_bytes(stack_bytes);
  ++state_->live;
  FiberProperties::newborn_priority = priority;
  boost::fibers::fiber fiber(boost::fibers::launch::post, std::allocator_arg, stacks,
                             [this, rank, body = std::move(body)]() mutable {
                               current_fiber()->rank = rank;
                               try {
                                 body();
                                 body = nullptr;
                               } catch (const std::exception& error) {
                                 std::fprintf(stderr, "smp: an exception left a fiber: %s\n",
                                              error.what());
                                 std::terminate();
                               }
                               --state_->live;
                             });
  fiber.detach();
}

void FiberScheduler::give_up() {
  --state_->live;
  // Boost waits at the thread's end for every worker fiber that is linked.
  Context::active()->worker_unlink();
  for (;;) Context::active()->suspend();
}

void FiberScheduler::yield() { boost::this_fiber::yield(); }

void FiberScheduler::sleep_for(Nanoseconds duration, const WaitReason& reason) {
  Event woken;
  if (auto* sim = state_->simulation) {
    sim->at(sim->now() + duration, [&woken] { woken.signal(); });
  } else {
    state_->timers.emplace(state_->steady.now() + duration, &woken);
  }
  woken.wait(reason);
}

}  // namespace smp::base
