// alive/process_watch.h: notices that another process of this machine has ended.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

namespace smp::base {

/// Whether a process of this machine has ended, also if its parent has not been told or does not
/// listen. Safe in a handler of signals.
bool has_ended(std::int64_t process) noexcept;

/// Waits on a thread of its own, without using up time, until others end: within milliseconds of
/// that, however they end.
class ProcessWatch {
 public:
  /// Where the kernel has no such thing (before Linux 5.3), or lacks files, it notices nothing.
  /// @param on_end  of which one, by its place among `processes`; once for each. On the watch's
  /// thread, which all signals pass by; must not throw.
  ProcessWatch(const std::vector<std::int64_t>& processes, std::function<void(std::size_t)> on_end);
  /// No call is made any more when it returns.
  ~ProcessWatch();
  ProcessWatch(const ProcessWatch&) = delete;
  ProcessWatch& operator=(const ProcessWatch&) = delete;

 private:
  struct Ends;  // what the thread waits for
  const std::unique_ptr<Ends> ends_;
  std::thread thread_;
};

}  // namespace smp::base
