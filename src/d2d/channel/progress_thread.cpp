// d2d/channel/progress_thread.cpp: see the header.
#include "d2d/channel/progress_thread.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <shared_mutex>
#include <utility>

#include "base/clock.h"
#include "base/signals_blocked.h"
#include "fiber/idler.h"

namespace smp::d2d {
namespace {

constexpr base::Nanoseconds kShortestSleep = 50 * base::kMicrosecond;
constexpr base::Nanoseconds kLongestSleep = 500 * base::kMicrosecond;
/// The time to spin after bytes have moved, since the next are near.
constexpr base::Nanoseconds kSpin = 20 * base::kMicrosecond;
/// The time that a look may take which is under way at exit(); one that takes longer is broken.
constexpr auto kPatienceAtExit = std::chrono::seconds(5);

/// Stops all progress threads at exit(), which ends no thread and takes away the libraries that
/// they call.
struct Exit {
  std::atomic<bool> begun{false};
  std::shared_timed_mutex moving;  // whoever moves shares it, and exit() takes it for good
  const pid_t process = ::getpid();
};

Exit& exit_of_process() {
  static auto* const only = [] {
    std::atexit([] {
      auto& own = exit_of_process();
      if (own.process != ::getpid()) return;  // a forked child has none of these threads
      own.begun = true;
      static_cast<void>(own.moving.try_lock_for(kPatienceAtExit));
    });
    return new Exit();
  }();
  return *only;
}

}  // namespace

ProgressThread::ProgressThread(std::function<Motion()> move) : move_(std::move(move)) { start(); }

void ProgressThread::start() {
  exit_of_process();  // from now on: what the thread uses is loaded already
  const base::SignalsBlocked blocked;
  thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
}

void ProgressThread::run(const std::stop_token& stop) {
  auto next_sleep = kShortestSleep;
  while (!stop.stop_requested()) {
    const auto seen = owner_moves_.load(std::memory_order_relaxed);
    fiber::sleep_briefly(next_sleep);
    auto motion = Motion::kNone;
    if (owner_moves_.load(std::memory_order_relaxed) == seen) {
      const std::shared_lock lock(exit_of_process().moving, std::try_to_lock);
      if (!lock) return;
      motion = move_until_still(stop);
    }
    next_sleep = motion == Motion::kNone ? std::min(2 * next_sleep, kLongestSleep) : kShortestSleep;
  }
}

/// Moves bytes until nothing moves, or the rank's thread is back. @return the most that a look has
/// found
ProgressThread::Motion ProgressThread::move_until_still(const std::stop_token& stop) {
  const base::SteadyClock clock;
  const auto seen = owner_moves_.load(std::memory_order_relaxed);
  const auto& exit_begun = exit_of_process().begun;
  const auto must_end = [&] {
    return owner_waits_.load(std::memory_order_relaxed) ||
           owner_moves_.load(std::memory_order_relaxed) != seen || stop.stop_requested() ||
           exit_begun.load(std::memory_order_relaxed);
  };
  auto most = Motion::kNone;
  for (auto end = clock.now(); !must_end(); ::sched_yield()) {
    const auto motion = move_();
    most = std::max(most, motion);
    if (motion == Motion::kSome) {
      end = clock.now() + kSpin;
    } else if (clock.now() >= end) {
      break;
    }
  }
  return most;
}

}  // namespace smp::d2d
