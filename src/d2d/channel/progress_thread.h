// d2d/channel/progress_thread.h: a second thread of a rank, which moves bytes while the rank
// computes. Paper: App. G.1 (the progress thread). Threads: as each function says.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <stop_token>
#include <thread>

namespace smp::d2d {

/// A thread that moves bytes while the rank's own thread, which does so whenever it waits, does
/// not. It sleeps in between: 50 us while bytes are on their way, and ever longer up to half a
/// millisecond while there are none. It takes no signals, and moves nothing any more once the
/// process ends by exit().
class ProgressThread {
 public:
  /// The result of a look.
  enum class Motion : std::uint8_t {
    kNone,
    kAwaited,  ///< nothing, but bytes are on their way
    kSome,
  };

  /// @param move  called on the new thread until the destructor. Does not throw, and waits for
  ///              nobody
  /// @throws std::system_error  the machine has no more threads.
  explicit ProgressThread(std::function<Motion()> move);
  ~ProgressThread() = default;
  ProgressThread(const ProgressThread&) = delete;
  ProgressThread& operator=(const ProgressThread&) = delete;

  /// Tells that the rank's thread has just moved what there was. Threads: the rank's only.
  void note_owner_moved() noexcept {
    const auto before = owner_moves_.load(std::memory_order_relaxed);
    owner_moves_.store(before + 1, std::memory_order_relaxed);
  }
  /// Tells whether the rank's thread waits for what `move` holds. Threads: the rank's only.
  void set_owner_waits(bool waits) noexcept {
    owner_waits_.store(waits, std::memory_order_relaxed);
  }

 private:
  void start();
  void run(const std::stop_token& stop);
  Motion move_until_still(const std::stop_token& stop);

  std::function<Motion()> move_;
  std::atomic<std::uint64_t> owner_moves_{0};
  std::atomic<bool> owner_waits_{false};
  std::jthread thread_;  // the last: it uses the others
};

}  // namespace smp::d2d
