// base/text/progress.h: tells a waiting person what is done, how far it is and how long it still
// takes.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>

#include "base/clock.h"

namespace smp::base {

/// Work that may take longer than a person waits without a word. After two seconds it shows a line
/// at the foot of the terminal, twice a second a new one, and removes it at the end. It shows
/// nothing where nobody would see it (status_line.h), on other ranks than 0, and while another such
/// object of this process lives. Made and used by one thread; a thread of its own writes the line.
class Progress {
 public:
  enum class Unit { kParts, kBytes };

  /// @param what   the beginning of the line: "load_safetensors"
  /// @param total  amount of work; 0: not known, then the line tells how long it has lasted
  /// @param quiet  time without a line
  explicit Progress(std::string what, std::int64_t total = 0, Unit unit = Unit::kParts,
                    Nanoseconds quiet = 2 * kSecond);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Tells how much of the work is done. Costs next to nothing.
  void at(std::int64_t done) noexcept { done_.store(done, std::memory_order_relaxed); }

 private:
  void show_until_over(Nanoseconds quiet);

  const std::string what_;
  const std::int64_t total_;
  const Unit unit_;
  std::atomic<std::int64_t> done_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool over_ = false;  // guarded by mutex_
  std::thread thread_;
};

/// Returns the line of such work: "smp: load_safetensors: 1.2 of 4.5 GiB, 27 %, 12 s left".
/// @param seconds  since its beginning
std::string progress_line(const std::string& what, std::int64_t done, std::int64_t total,
                          Progress::Unit unit, double seconds);

}  // namespace smp::base
