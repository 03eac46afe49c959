// base/fiber.cpp: our scheduling algorithm under Boost.Fiber: priorities, lazy exchange of
// LibTorch's thread-local state, polling, sleeping and simulated time.
#include "base/fiber.h"

#include <ATen/Parallel.h>
#include <sched.h>
#include <sys/prctl.h>
#include <time.h>
#include <boost/fiber/all.hpp>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <map>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/sanitizer_switch.h"
#include "base/sim_clock.h"
#include "base/stack_pool.h"
#include "base/torch_state.h"
#include "base/turns.h"

namespace smp::base {
namespace {

using Context = boost::fibers::context;

/// Boost creates a fiber's properties when it first becomes ready, inside spawn().
thread_local Priority newborn_priority = 0;

/// Of a thread that shares its core, between two looks for an answer that is due.
constexpr Nanoseconds kShortSleep = 20 * kMicrosecond;

/// A fiber's own data, kept by Boost beside its context.
struct Properties : boost::fibers::fiber_properties {
  explicit Properties(Context* context) noexcept : fiber_properties(context) {
    locals.priority = std::exchange(newborn_priority, 0);
  }
  FiberLocals locals;
  std::optional<TorchState> torch;
  ExceptionGlobals exceptions;
};

thread_local FiberLocals* running_locals = nullptr;
thread_local FiberScheduler* thread_scheduler = nullptr;

bool is_dispatcher(const Context* context) noexcept {
  return context->is_context(boost::fibers::type::dispatcher_context);
}

/// A terminating fiber has left the queue of worker fibers; the dispatcher frees it next.
bool is_terminating(Context* context) noexcept {
  return context->is_context(boost::fibers::type::worker_context) && !context->worker_is_linked();
}

void describe_running_fiber(char* text, std::size_t size) {
  const auto* fiber = running_locals;
  if (fiber == nullptr || fiber->rank == nullptr) return;
  fiber->rank->describe(fiber->execution, text, size);
}

void notify_rank(const FiberLocals& locals, bool running) noexcept {
  if (locals.rank != nullptr && locals.execution != nullptr) {
    locals.rank->on_switch(locals.execution, running);
  }
}

void sleep_briefly(Nanoseconds duration) noexcept {
  const timespec pause{0, static_cast<long>(duration)};
  nanosleep(&pause, nullptr);
}

class Algorithm;

}  // namespace

struct FiberScheduler::State {
  SteadyClock steady;
  IdlePolicy idle;
  SimClock* simulation = nullptr;
  std::function<void()> on_deadlock;
  std::vector<std::shared_ptr<Poll>> polls;
  std::multimap<Nanoseconds, Event*> timers;  // real time only
  std::map<std::size_t, StackPool> stacks;    // by size; kept until the process ends
  std::vector<FiberLocals*> waiting;
  Nanoseconds idle_since = 0;
  Nanoseconds next_sleep = 0;
  Nanoseconds last_turn = 0;
  std::size_t live = 0;
  Algorithm* algorithm = nullptr;

  const Clock& clock() const noexcept {
    if (simulation != nullptr) return *simulation;
    return steady;
  }
  bool poll_all() noexcept;
  bool fire_timers() noexcept;
  void idle_once() noexcept;
  void advance_simulation() noexcept;
  void back_off(Nanoseconds now) noexcept;
  bool awaits_answers() const noexcept;
  bool turn_is_due(const FiberLocals& fiber) const noexcept;
  Nanoseconds patience(Nanoseconds now) const noexcept;
};

namespace {

/// Ready fibers by (priority, arrival); in simulated time drawn at random. The dispatcher, which
/// frees terminated fibers and then idles, runs only when nothing else is ready.
class Algorithm final : public boost::fibers::algo::algorithm_with_properties<Properties> {
 public:
  explicit Algorithm(FiberScheduler::State& state) : state_(state) {
    state_.algorithm = this;
    ready_.reserve(1024);
    adopt_running_fiber();
  }

  void awakened(Context* context, Properties&) noexcept override {
    if (is_dispatcher(context)) {
      dispatcher_ = context;
      dispatcher_ready_ = true;
    } else {
      ready_.push_back(context);
    }
  }

  bool has_ready_fibers() const noexcept override { return !ready_.empty() || dispatcher_ready_; }
  bool fiber_is_ready() const noexcept { return !ready_.empty(); }
  bool someone_goes_before(const FiberLocals& fiber) {
    return std::any_of(ready_.begin(), ready_.end(), [&](Context* other) {
      return goes_before(properties(other).locals, fiber);
    });
  }

  Context* pick_next() noexcept override {
    Context* const leaving = Context::active();
    Context* const next = take_next();
    if (next == nullptr || next == leaving) return next;
    if (!is_dispatcher(leaving)) leave(leaving);
    sanitizer_switch(next, is_dispatcher(next) ? 0 : stack_bytes_);
    if (is_dispatcher(next)) {
      exception_globals() = {};
    } else {
      enter(next);
    }
    return next;
  }

  void suspend_until(const std::chrono::steady_clock::time_point&) noexcept override {
    state_.idle_once();
  }
  void notify() noexcept override {}

  Properties& properties_of(Context* context) {
    if (context->get_properties() == nullptr) set_properties(context, new Properties(context));
    return *static_cast<Properties*>(context->get_properties());
  }
  void set_stack_bytes(std::size_t bytes) noexcept { stack_bytes_ = bytes; }

 private:
  void adopt_running_fiber() {
    owner_ = Context::active();
    running_locals = &properties_of(owner_).locals;
  }

  Context* take_next() noexcept {
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

  std::vector<Context*>::iterator choose() noexcept {
    auto* simulation = state_.simulation;
    if (simulation != nullptr && simulation->random_choice) {
      const auto index = simulation->random()() % ready_.size();
      simulation->trace(index);
      return ready_.begin() + static_cast<std::ptrdiff_t>(index);
    }
    return std::min_element(ready_.begin(), ready_.end(), [this](Context* a, Context* b) {
      return goes_before(properties(a).locals, properties(b).locals);
    });
  }

  static bool goes_before(const FiberLocals& a, const FiberLocals& b) noexcept {
    if (a.passing_on != b.passing_on) return a.passing_on;
    return a.priority < b.priority;
  }

  void leave(Context* leaving) noexcept {
    if (is_terminating(leaving)) {
      owner_ = nullptr;
      return;
    }
    auto& own = properties_of(leaving);
    own.exceptions = exception_globals();
    notify_rank(own.locals, false);
    owner_ = leaving;
  }

  /// LibTorch's state stays installed while the dispatcher runs (it calls no LibTorch code), so it
  /// is exchanged only when a different fiber follows.
  void enter(Context* next) noexcept {
    auto& own = properties_of(next);
    if (next != owner_) {
      if (owner_ != nullptr) properties_of(owner_).torch = TorchState::capture();
      (own.torch ? *own.torch : fresh_).restore(clean_);
      own.torch.reset();
      owner_ = next;
    }
    exception_globals() = own.exceptions;
    running_locals = &own.locals;
    notify_rank(own.locals, true);
  }

  FiberScheduler::State& state_;
  std::vector<Context*> ready_;
  Context* dispatcher_ = nullptr;
  bool dispatcher_ready_ = false;
  Context* owner_ = nullptr;  // the fiber whose LibTorch state is installed
  at::ThreadLocalState clean_;
  TorchState fresh_ = TorchState::capture();  // of a new fiber
  std::size_t stack_bytes_ = 0;
};

[[noreturn]] void end_process(const std::vector<std::string>& waiting) noexcept {
  std::fprintf(stderr, "smp: deadlock: no fiber is ready and no event is pending; waiting:\n");
  for (const auto& line : waiting) std::fprintf(stderr, "  %s\n", line.c_str());
  std::abort();
}

}  // namespace

// ---- idling -----------------------------------------------------------------------------------

bool FiberScheduler::State::poll_all() noexcept {
  bool progress = fire_timers();
  // By index: a poll may add another.
  for (std::size_t i = 0; i < polls.size(); ++i) progress |= (*polls[i])();
  return progress;
}

bool FiberScheduler::State::fire_timers() noexcept {
  bool fired = false;
  while (!timers.empty() && timers.begin()->first <= steady.now()) {
    timers.begin()->second->signal();
    timers.erase(timers.begin());
    fired = true;
  }
  return fired;
}

void FiberScheduler::State::idle_once() noexcept {
  if (poll_all() || algorithm->fiber_is_ready()) {
    idle_since = 0;
  } else if (simulation != nullptr) {
    advance_simulation();
  } else {
    back_off(steady.now());
  }
}

void FiberScheduler::State::advance_simulation() noexcept {
  if (simulation->advance()) return;
  if (!on_deadlock) end_process(thread_scheduler->waiting_report());
  on_deadlock();
}

/// Spin, yield, then sleep ever longer: an idle rank must leave the core to a busy one.
void FiberScheduler::State::back_off(Nanoseconds now) noexcept {
  if (idle_since == 0) {
    idle_since = now;
    next_sleep = idle.first_sleep;
  }
  const auto idle_for = now - idle_since;
  if (!idle.oversubscribed && idle_for < idle.spin) return;
  const auto yields_for = idle.oversubscribed ? idle.spin : 100 * idle.spin;
  if (idle_for < yields_for) {
    sched_yield();
    return;
  }
  sleep_briefly(next_sleep);
  next_sleep = std::min(2 * next_sleep, idle.longest_sleep);
}

// ---- waiting ----------------------------------------------------------------------------------

FiberLocals* current_fiber() noexcept { return running_locals; }

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
  running_locals->waiting = &reason;
  FiberScheduler::instance().suspend_until_set(*this);
  running_locals->waiting = nullptr;
}

void FiberScheduler::wait_for(Event& event, const WaitReason& reason) {
  auto& own = *running_locals;
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
  const auto limit = state.idle.oversubscribed ? Nanoseconds{0} : state.idle.spin;
  do {
    state.poll_all();
  } while (!event.set_ && !state.algorithm->fiber_is_ready() && state.steady.now() - start < limit);
}

// ---- turns ------------------------------------------------------------------------------------

bool FiberScheduler::State::awaits_answers() const noexcept {
  return std::any_of(waiting.begin(), waiting.end(),
                     [](const FiberLocals* fiber) { return fiber->waiting->peer >= 0; });
}

bool FiberScheduler::State::turn_is_due(const FiberLocals& fiber) const noexcept {
  if (at::in_parallel_region()) return false;
  if (fiber.passing_on) return true;
  // Simulated order must not depend on the time that computing takes.
  return simulation == nullptr && steady.now() - last_turn > kLongWork && awaits_answers();
}

Nanoseconds FiberScheduler::State::patience(Nanoseconds now) const noexcept {
  if (simulation != nullptr || !awaits_answers()) return 0;
  return base::patience(now - last_turn);
}

void FiberScheduler::take_turn() {
  auto& own = *running_locals;
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
    if (patience > 0 && state.idle.oversubscribed) sleep_briefly(kShortSleep);
  } while (state.last_turn - start < patience);
  notify_rank(own, true);
}

// ---- the scheduler ----------------------------------------------------------------------------

FiberScheduler::FiberScheduler() : state_(std::make_unique<State>()) {
  // Short sleeps are meant: the default slack of 50 us would double them.
  prctl(PR_SET_TIMERSLACK, 1);
  install_overflow_report(describe_running_fiber);
  boost::fibers::use_scheduling_algorithm<Algorithm>(*state_);
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

void FiberScheduler::set_idle_policy(const IdlePolicy& policy) { state_->idle = policy; }
void FiberScheduler::set_simulation(SimClock* sim) { state_->simulation = sim; }
const Clock& FiberScheduler::clock() const noexcept { return state_->clock(); }
std::size_t FiberScheduler::live_fibers() const noexcept { return state_->live; }
bool FiberScheduler::any_waiting() const noexcept { return !state_->waiting.empty(); }
bool FiberScheduler::poll_all() noexcept { return state_->poll_all(); }

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
  newborn_priority = priority;
  boost::fibers::fiber fiber(boost::fibers::launch::post, std::allocator_arg, stacks,
                             [this, rank, body = std::move(body)]() mutable {
                               running_locals->rank = rank;
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

std::vector<std::string> FiberScheduler::waiting_report() const {
  std::vector<std::string> lines;
  for (const auto* fiber : state_->waiting) {
    char who[256] = "a fiber";
    if (fiber->rank != nullptr) fiber->rank->describe(fiber->execution, who, sizeof who);
    const auto& reason = *fiber->waiting;
    std::string line = concat(who, " waits for ", reason.what);
    if (*reason.module_path != '\0') line += concat(" of ", reason.module_path);
    if (reason.peer >= 0) line += concat(" on rank ", reason.peer);
    if (reason.microbatch >= 0) line += concat(", microbatch ", reason.microbatch);
    const auto seconds = static_cast<double>(clock().now() - fiber->waiting_since) / kSecond;
    lines.push_back(line + concat(", for ", seconds, " s"));
  }
  return lines;
}

}  // namespace smp::base
