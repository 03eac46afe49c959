// base/fiber_state.cpp: polling and idling, when a turn is due, and the report of who waits.
#include "base/fiber_state.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "base/check.h"
#include "base/fiber_algorithm.h"
#include "base/sim_clock.h"
#include "base/turns.h"

namespace smp::base {
namespace {

[[noreturn]] void end_process(const std::vector<std::string>& waiting) noexcept {
  std::fprintf(stderr, "smp: deadlock: no fiber is ready and no event is pending; waiting:\n");
  for (const auto& line : waiting) std::fprintf(stderr, "  %s\n", line.c_str());
  std::abort();
}

}  // namespace

const Clock& FiberScheduler::State::clock() const noexcept {
  if (simulation != nullptr) return *simulation;
  return steady;
}

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
    idler.progressed();
  } else if (simulation != nullptr) {
    advance_simulation();
  } else {
    idler.back_off(steady.now());
  }
}

void FiberScheduler::State::advance_simulation() noexcept {
  if (simulation->advance()) return;
  if (!on_deadlock) end_process(waiting_report());
  on_deadlock();
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

// ---- who waits --------------------------------------------------------------------------------

std::vector<std::string> FiberScheduler::State::waiting_report() const {
  std::vector<std::string> lines;
  for (const auto* fiber : waiting) {
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
