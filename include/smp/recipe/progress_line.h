// smp/recipe/progress_line.h: how far a run is, and how long it will take, in a terminal.
#pragma once

#include <cstdint>
#include <deque>
#include <string>

#include "smp/detail/export.h"

namespace smp {

/// The last line of a person's terminal (stderr): a bar, the share of steps that are done, the time
/// that is left, and a note. It shows nothing where nobody looks: stderr is no terminal (under a
/// launcher, that of the launcher; SMP_PROGRESS = 1 or 0 says so for sure), or `speaks` is false.
/// Erase it before other lines are printed. Threads: one at a time.
class SMP_API ProgressLine {
 public:
  /// @param steps   of the whole run, in this job and before it
  /// @param done    those before this job
  /// @param speaks  whether this rank may show it: smp::rank() == 0
  /// @throws UsageError  `steps` is not positive, or `done` is not from 0 to `steps`.
  explicit ProgressLine(std::int64_t steps, std::int64_t done = 0, bool speaks = true);
  /// Erases it.
  ~ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  /// Takes the time of the next step, and shows the line.
  void step(double seconds, const std::string& note = {});
  /// Removes the line until the next step.
  void erase() noexcept;

  /// Returns the steps that are left, times the median of the last 20 that were taken: the first
  /// step, which plans, and one that saves do not count for much. 0 before the first.
  double seconds_left() const;
  /// Returns the line as step() shows it.
  std::string text(const std::string& note = {}) const;

 private:
  std::int64_t steps_;
  std::int64_t done_;
  bool shows_;
  std::deque<double> last_seconds_;
};

/// Returns a time in words of a clock: "42 s", "3:05 min", "2:10 h", "5 d 3 h". Any thread.
SMP_API std::string spoken_seconds(double seconds);

}  // namespace smp
