// base/text/progress.cpp: see the header.
#include "base/text/progress.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/signals_blocked.h"
#include "base/status_line.h"
#include "base/text/byte_text.h"

namespace smp::base {
namespace {

constexpr std::size_t kMostColumns = 78;  // a longer line would fold, and not be removed whole
constexpr std::chrono::milliseconds kBetweenLines(500);

/// Whether some object of this process has the line.
std::atomic<bool> line_is_taken = false;

std::string short_duration(double seconds) {
  const auto whole = static_cast<std::int64_t>(std::ceil(seconds));
  if (whole < 120) return concat(whole, " s");
  return concat((whole + 59) / 60, " min");
}

}  // namespace

Progress::Progress(std::string what, std::int64_t total, Unit unit, Nanoseconds quiet)
    : what_(std::move(what)), total_(total), unit_(unit) {
  if (log_rank() > 0 || !has_audience() || line_is_taken.exchange(true)) return;
  const SignalsBlocked blocked;
  thread_ = std::thread([this, quiet] { show_until_over(quiet); });
}

Progress::~Progress() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
  }
  changed_.notify_one();
  thread_.join();
  erase_status();
  line_is_taken = false;
}

void Progress::show_until_over(Nanoseconds quiet) {
  const SteadyClock clock;
  const auto start = clock.now();
  std::unique_lock lock(mutex_);
  auto pause = std::chrono::milliseconds(quiet / kMillisecond);
  while (!changed_.wait_for(lock, pause, [this] { return over_; })) {
    const auto seconds = static_cast<double>(clock.now() - start) / kSecond;
    show_status(
        progress_line(what_, done_.load(std::memory_order_relaxed), total_, unit_, seconds));
    pause = kBetweenLines;
  }
}

std::string progress_line(const std::string& what, std::int64_t done, std::int64_t total,
                          Progress::Unit unit, double seconds) {
  auto line = concat("smp: ", what, total > 0 ? ": " : ", ");
  if (total > 0) {
    done = std::clamp<std::int64_t>(done, 0, total);
    const bool bytes = unit == Progress::Unit::kBytes;
    line += bytes ? concat(byte_text(done), " of ", byte_text(total)) : concat(done, " of ", total);
    const auto share = static_cast<double>(done) / static_cast<double>(total);
    line += concat(", ", static_cast<int>(100 * share), " %, ");
    if (done > 0) {
      line += concat(short_duration(seconds * (1 - share) / share), " left");
    } else {
      line += concat(short_duration(seconds), " so far");
    }
  } else {
    line += concat(short_duration(seconds), " so far");
  }
  return line.substr(0, std::min(line.size(), kMostColumns));
}

}  // namespace smp::base
