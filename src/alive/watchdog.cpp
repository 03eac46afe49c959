// alive/watchdog.cpp: counting time without heartbeats.
#include "alive/watchdog.h"

#include <pthread.h>
#include <unistd.h>
#include <csignal>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <thread>
#include <utility>

#include "alive/pulse.h"
#include "alive/running_call.h"
#include "alive/transport_call.h"
#include "base/clock.h"
#include "base/signals_blocked.h"

namespace smp::server {
namespace {

/// The state that the watchdog's thread shares with others. Never freed, because the thread runs
/// until the process ends.
struct Shared {
  std::mutex mutex;  // of what follows
  std::condition_variable changed;
  int sessions = 0;
  Watchdog::Limits limits{};
  std::function<void()> end_job;
  bool started = false;

  std::atomic<int> steps{0};
  std::atomic<bool> ending{false};
};

Shared& shared() {
  static auto* const state = new Shared();
  return *state;
}

constexpr const char* kCauses =
    "a long operator only takes its time; else look for a mutex that is held across the call of a "
    "module on another rank (another microbatch then waits for it on the same thread), for a wait "
    "of the program's own (MPI_Barrier, MPI_Recv, a future) in a module or a step's body, and for "
    "a loop without end";

void say(const char* text) noexcept {
  char line[1024];
  const int length = std::snprintf(line, sizeof line, "smp: %s\n", text);
  const auto bytes = std::min<std::size_t>(static_cast<std::size_t>(length), sizeof line - 1);
  if (write(STDERR_FILENO, line, bytes) < 0) return;  // nobody is left to tell
}

void describe_running(char* text, std::size_t size) noexcept {
  if (base::in_transport_call()) {
    std::snprintf(text, size, "rank %d", base::own_pulse().rank.load());
    return;
  }
  if (running_call.running()) return running_call.describe(text, size);
  std::snprintf(text, size, "code outside of routed modules (the trial run of a body, or main)");
}

/// Ends the job; if that hangs, this process at least, after 5 s.
[[noreturn]] void end_job(const std::function<void()>& end) noexcept {
  ::signal(SIGALRM, SIG_DFL);
  sigset_t alarm_only;
  sigemptyset(&alarm_only);
  sigaddset(&alarm_only, SIGALRM);
  pthread_sigmask(SIG_UNBLOCK, &alarm_only, nullptr);
  alarm(5);
  if (end) end();
  _exit(1);
}

/// Measures the time that passes while nothing changes. Time in which the process is stopped (in a
/// debugger) does not count.
class Watch {
 public:
  explicit Watch(Shared& state) : state_(state) {}

  [[noreturn]] void run() {
    for (;;) {
      const auto limits = next_tick();
      const auto now = clock_.now();
      const double seconds = static_cast<double>(now - last_) / base::kSecond;
      last_ = now;
      note_heartbeats(now);
      look(limits, std::min(seconds, 4 * tick_));
    }
  }

 private:
  Watchdog::Limits next_tick() {
    std::unique_lock lock(state_.mutex);
    if (state_.sessions == 0) {
      state_.changed.wait(lock, [this] { return state_.sessions > 0; });
      last_ = clock_.now();
      quiet_ = ending_ = 0;
    }
    tick_ = tick_of(state_.limits);
    state_.changed.wait_for(lock, std::chrono::duration<double>(tick_),
                            [this] { return state_.sessions == 0; });
    return state_.limits;
  }

  static double tick_of(const Watchdog::Limits& limits) noexcept {
    double shortest = 8;
    if (limits.report_seconds > 0) shortest = std::min(shortest, limits.report_seconds);
    if (limits.abort_seconds > 0) shortest = std::min(shortest, limits.abort_seconds);
    return std::clamp(shortest / 8, 0.005, 1.0);
  }

  /// Notes the time of new heartbeats for other processes.
  void note_heartbeats(base::Nanoseconds now) noexcept {
    auto& pulse = base::own_pulse();
    const auto beats = pulse.beats.load(std::memory_order_relaxed);
    came_back_ = std::exchange(beats_, beats) != beats;
    if (!came_back_) return;
    pulse.last_beat = now;
    pulse.accuser = -1;
  }

  void look(const Watchdog::Limits& limits, double seconds) {
    if (came_back_ || state_.steps.load() == 0) {
      quiet_ = 0;
      reported_ = false;
    } else {
      quiet_ += seconds;
    }
    ending_ = state_.ending.load() ? ending_ + seconds : 0;
    const bool report = limits.report_seconds > 0 && quiet_ >= limits.report_seconds;
    if (report && limits.abort_seconds > 0 && base::in_transport_call()) {
      end(
          {"MPI has not come back from a call that waits for nothing; as a rule a connection of "
           "this rank was cut: look at its network, and restart from a checkpoint",
           quiet_, "stall_seconds"});
    }
    if (report && !std::exchange(reported_, true)) say_stuck(limits);
    if (limits.abort_seconds <= 0) return;
    if (quiet_ >= limits.abort_seconds + limits.grace_seconds) {
      end({"has not come back to the library", quiet_, "abort_seconds"});
    }
    if (ending_ >= limits.grace_seconds) {
      end({"its waits were ended after abort_seconds, and the program did not end", ending_,
           "abort_seconds"});
    }
  }

  void say_stuck(const Watchdog::Limits& limits) const noexcept {
    char who[512];
    char text[1000];
    describe_running(who, sizeof who);
    std::snprintf(text, sizeof text,
                  "%s: has kept its thread for %.0f s without coming back to the library: %s "
                  "(stall_seconds reports, abort_seconds = %g ends the job)",
                  who, quiet_, kCauses, limits.abort_seconds);
    say(text);
  }

  struct End {
    const char* why;
    double seconds;
    const char* setting;  // that says when
  };
  [[noreturn]] void end(const End& reason) const {
    char who[512];
    char text[1000];
    describe_running(who, sizeof who);
    std::snprintf(text, sizeof text, "%s: %s (%.0f s): ending the job (%s)", who, reason.why,
                  reason.seconds, reason.setting);
    say(text);
    base::own_pulse().spoke = true;
    std::function<void()> end;
    {
      const std::lock_guard lock(state_.mutex);
      end = state_.end_job;
    }
    end_job(end);
  }

  Shared& state_;
  const base::SteadyClock clock_;
  base::Nanoseconds last_ = clock_.now();
  std::uint64_t beats_ = 0;
  bool came_back_ = false;  // since the last look
  double tick_ = 0;
  double quiet_ = 0;   // without a heartbeat in a step
  double ending_ = 0;  // since end_soon()
  bool reported_ = false;
};

}  // namespace

double Watchdog::grace_after(double abort_seconds) noexcept {
  return std::clamp(abort_seconds / 10, 8.0, 60.0);
}

Watchdog::Session::Session(const Limits& limits, std::function<void()> end_job) {
  auto& state = shared();
  const std::lock_guard lock(state.mutex);
  ++state.sessions;
  state.limits = limits;
  state.end_job = std::move(end_job);
  if (!std::exchange(state.started, true)) {
    const base::SignalsBlocked blocked;
    std::thread([&state] { Watch(state).run(); }).detach();
  }
  state.changed.notify_one();
}

Watchdog::Session::~Session() {
  auto& state = shared();
  const std::lock_guard lock(state.mutex);
  if (--state.sessions > 0) return;
  state.ending = false;
  state.end_job = nullptr;
  state.changed.notify_one();
}

Watchdog::Step::Step() noexcept { ++shared().steps; }
Watchdog::Step::~Step() { --shared().steps; }

void Watchdog::end_soon() noexcept { shared().ending = true; }
void Watchdog::calm_down() noexcept { shared().ending = false; }

}  // namespace smp::server
