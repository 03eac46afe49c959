// fiber/scheduler_state.cpp: polling and idling, and the report of who waits.
#include "fiber/scheduler_state.h"

#include <cstdio>
#include <cstdlib>

#include "alive/heartbeat.h"
#include "base/check.h"
#include "fiber/scheduling_algorithm.h"
#include "fiber/sim_clock.h"

namespace smp::fiber {
namespace {

[[noreturn]] void end_process(const std::vector<std::string>& waiting) noexcept {
  std::fprintf(stderr, "smp: deadlock: no fiber is ready and no event is pending; waiting:\n");
  for (const auto& line : waiting) std::fprintf(stderr, "  %s\n", line.c_str());
  std::abort();
}

}  // namespace

const base::Clock& Scheduler::State::clock() const noexcept {
  if (simulation != nullptr) return *simulation;
  return steady;
}

// ---- idling ------------------------------------------------------------------------------------

bool Scheduler::State::poll_all() noexcept {
  base::beat();
  bool progress = fire_timers();
  // By index: a poll may add another.
  for (std::size_t i = 0; i < polls.size(); ++i) progress |= (*polls[i])();
  return progress;
}

bool Scheduler::State::fire_timers() noexcept {
  bool fired = false;
  while (!timers.empty() && timers.begin()->first <= steady.now()) {
    timers.begin()->second->signal();
    timers.erase(timers.begin());
    fired = true;
  }
  return fired;
}

void Scheduler::State::idle_once() noexcept {
  if (poll_all() || algorithm->fiber_is_ready()) {
    idler.progressed();
  } else if (simulation != nullptr) {
    advance_simulation();
  } else {
    idler.back_off(steady.now());
  }
}

void Scheduler::State::spin_until(const bool& set, base::Nanoseconds start) noexcept {
  if (simulation != nullptr) return;
  const auto limit = idler.spin();
  do {
    poll_all();
  } while (!set && !algorithm->fiber_is_ready() && steady.now() - start < limit);
}

void Scheduler::State::advance_simulation() noexcept {
  if (simulation->advance()) return;
  if (!on_deadlock) end_process(waiting_report());
  on_deadlock();
}

void Scheduler::State::abandon_fibers() noexcept {
  for (auto* const fiber : begun) {
    if (fiber != boost::fibers::context::active()) fiber->worker_unlink();
  }
  begun.clear();
}

// ---- who waits ---------------------------------------------------------------------------------

std::vector<Scheduler::Wait> Scheduler::State::waits() const {
  std::vector<Wait> waits;
  for (const auto* fiber : waiting) {
    char who[256] = "a fiber";
    if (fiber->activity != nullptr) fiber->activity->describe(who, sizeof who);
    const auto& reason = *fiber->waiting;
    std::string line = base::concat(who, " waits for ", reason.what);
    if (*reason.module_path != '\0') line += base::concat(" of ", reason.module_path);
    if (reason.peer >= 0) line += base::concat(" on rank ", reason.peer);
    if (*reason.group != '\0') line += base::concat(" of ", reason.group);
    if (reason.microbatch >= 0) line += base::concat(", microbatch ", reason.microbatch);
    if (*reason.call != '\0')
      line += base::concat(" (every rank of it must call ", reason.call, ")");
    waits.push_back({std::move(line), clock().now() - fiber->waiting_since});
  }
  return waits;
}

std::vector<std::string> Scheduler::State::waiting_report() const {
  std::vector<std::string> lines;
  for (const auto& wait : waits()) {
    const auto seconds = static_cast<double>(wait.age) / base::kSecond;
    lines.push_back(base::concat(wait.text, ", for ", seconds, " s"));
  }
  return lines;
}

}  // namespace smp::fiber
