// recipe/progress_line.cpp: see the header.
#include "smp/recipe/progress_line.h"

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <sstream>
#include <vector>

#include "base/check.h"
#include "base/status_line.h"

namespace smp {
namespace {

constexpr std::int64_t kBarWidth = 30;
constexpr std::size_t kRemembered = 20;

std::string bar(std::int64_t filled) {
  std::string text;
  for (std::int64_t i = 0; i < kBarWidth; ++i) text += i < filled ? "█" : "░";
  return text;
}

/// "3:05" of 185 and 60.
std::string pair(std::int64_t value, std::int64_t unit) {
  std::ostringstream text;
  text << value / unit << ':' << std::setw(2) << std::setfill('0') << value % unit;
  return text.str();
}

}  // namespace

ProgressLine::ProgressLine(std::int64_t steps, std::int64_t done, bool speaks)
    : steps_(steps), done_(done), shows_(speaks && base::has_audience()) {
  SMP_REQUIRE(steps > 0 && done >= 0 && done <= steps, "ProgressLine: ", done, " of ", steps,
              " steps are done");
}

ProgressLine::~ProgressLine() { erase(); }

void ProgressLine::step(double seconds, const std::string& note) {
  done_ = std::min(done_ + 1, steps_);
  last_seconds_.push_back(seconds);
  if (last_seconds_.size() > kRemembered) last_seconds_.pop_front();
  if (shows_) base::show_status(text(note));
}

void ProgressLine::erase() noexcept {
  if (shows_) base::erase_status();
}

double ProgressLine::seconds_left() const {
  if (last_seconds_.empty()) return 0;
  std::vector<double> sorted(last_seconds_.begin(), last_seconds_.end());
  const auto middle = sorted.begin() + std::ssize(sorted) / 2;
  std::nth_element(sorted.begin(), middle, sorted.end());
  return *middle * static_cast<double>(steps_ - done_);
}

std::string ProgressLine::text(const std::string& note) const {
  const auto left = base::concat(bar(kBarWidth * done_ / steps_), ' ', 100 * done_ / steps_, " %  ",
                                 spoken_seconds(seconds_left()), " left");
  return note.empty() ? left : left + "  " + note;
}

std::string spoken_seconds(double seconds) {
  constexpr std::int64_t kMinute = 60;
  constexpr std::int64_t kHour = 60 * kMinute;
  constexpr std::int64_t kDay = 24 * kHour;
  constexpr double kMost = 1e15;
  if (!(seconds < kMost)) return "? s";  // no number, too
  const auto whole = std::llround(std::max(seconds, 0.0));
  if (whole < kMinute) return std::to_string(whole) + " s";
  if (whole < kHour) return pair(whole, kMinute) + " min";
  if (whole < kDay) return pair(whole / kMinute, kMinute) + " h";
  return base::concat(whole / kDay, " d ", whole % kDay / kHour, " h");
}

}  // namespace smp
