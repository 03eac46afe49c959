// alive/process_watch.h: notices that another process of this machine has ended.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

namespace smp::base {

/// True if a process of this machine has ended, also if its parent has not been told or does not
/// listen. Safe in a signal handler.
bool has_ended(std::int64_t process) noexcept;

/// Waits on a thread of its own, without using processor time, until other processes end, and
/// reports that within milliseconds, however they end.
class ProcessWatch {
 public:
  /// Starts to watch. Notices nothing where the kernel has no descriptors of processes (before
  /// Linux 5.3), or the process has no file descriptors left.
  /// @param on_end  called once for each process that ends, with its index in `processes`, on the
  /// watch's thread, which takes no signals; must not throw.
  ProcessWatch(const std::vector<std::int64_t>& processes, std::function<void(std::size_t)> on_end);
  /// Stops the watch; `on_end` is not called any more when it returns.
  ~ProcessWatch();
  ProcessWatch(const ProcessWatch&) = delete;
  ProcessWatch& operator=(const ProcessWatch&) = delete;

 private:
  struct Ends;  // what the thread waits for
  const std::unique_ptr<Ends> ends_;
  std::thread thread_;
};

}  // namespace smp::base
