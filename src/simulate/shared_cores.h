// simulate/shared_cores.h: the cores of one host, shared evenly by the stages that compute on it.
#pragma once

#include <algorithm>
#include <cmath>
#include <tuple>
#include <vector>

#include "base/clock.h"

namespace smp::simulate {

/// Processor sharing: as long as there are not more stages at work than cores, each has one; else
/// all are equally slow, as under an operating system that shares time fairly. Times never go back.
class SharedCores {
 public:
  explicit SharedCores(double cores) : cores_(cores) {}

  bool idle() const noexcept { return heap_.empty(); }

  /// Begins a computation of `stage` that takes `work` on a core of its own.
  void begin(int stage, base::Nanoseconds work, base::Nanoseconds now) {
    advance(now);
    heap_.push_back({work_ + static_cast<double>(work), ++begun_, stage});
    std::push_heap(heap_.begin(), heap_.end(), later);
  }

  /// Returns when the first computation ends, if no other begins. Must not be idle.
  base::Nanoseconds next_end() const noexcept {
    const double rest = std::max(0.0, heap_.front().work - work_) / rate();
    return updated_ + static_cast<base::Nanoseconds>(std::ceil(rest));
  }
  int next_stage() const noexcept { return heap_.front().stage; }

  /// Ends the first computation, at `next_end()`.
  void end(base::Nanoseconds now) {
    advance(now);
    work_ = std::max(work_, heap_.front().work);
    std::pop_heap(heap_.begin(), heap_.end(), later);
    heap_.pop_back();
  }

 private:
  struct Entry {
    double work;  // of each stage since the start, at which this one ends
    long number;  // ties go by start
    int stage;
  };
  static bool later(const Entry& a, const Entry& b) noexcept {
    return std::tie(a.work, a.number) > std::tie(b.work, b.number);
  }

  double rate() const noexcept { return std::min(1.0, cores_ / static_cast<double>(heap_.size())); }
  void advance(base::Nanoseconds now) {
    if (!heap_.empty()) work_ += rate() * static_cast<double>(now - updated_);
    updated_ = now;
  }

  double cores_;
  double work_ = 0;  // done by a stage that is always at work
  base::Nanoseconds updated_ = 0;
  long begun_ = 0;
  std::vector<Entry> heap_;
};

}  // namespace smp::simulate
