// d2d/watch/keep_alive.h: notices that a rank of another machine is gone, or that the network to it
// is cut, whatever wires lead there and however long ranks compute. Paper: §6.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/machine/tcp_socket.h"
#include "smp/rank.h"

namespace smp::d2d {

/// A rank of another machine, and a connection to its process over which nothing else goes.
struct WatchedRank {
  GlobalRank rank;
  std::int64_t process = 0;
  std::string host = {};
  base::TcpSocket connection = {};
};

struct KeepAliveOptions {
  /// The silence after which a machine counts as gone.
  base::Nanoseconds silence = 15 * base::kSecond;
  /// The time for which a rank that has ended is not called lost, since the job ends with it as a
  /// rule, and this process too.
  base::Nanoseconds launcher_patience = 2 * base::kSecond;
};

/// Idle connections to ranks of other machines. The kernels at both ends keep them alive, so a rank
/// that computes, sleeps or is stopped counts as alive; the kernel closes those of a process that
/// ends, and ends those of a machine that is silent. A thread sleeps at all of them.
/// Threads: one at a time.
class KeepAlive {
 public:
  /// @throws std::system_error  the machine has no more threads or files.
  explicit KeepAlive(GlobalRank own, std::vector<WatchedRank> ranks,
                     const KeepAliveOptions& options = {});
  ~KeepAlive();
  KeepAlive(const KeepAlive&) = delete;
  KeepAlive& operator=(const KeepAlive&) = delete;

  /// Checks all watched ranks.
  /// @throws PeerLostError  a rank is gone that has not left, or its machine is silent.
  void require_no_loss() const {
    if (any_closed_.load(std::memory_order_acquire)) look();
  }
  /// Tells all others that this rank is about to end in good order.
  void leave() noexcept;

 private:
  struct Watched {
    WatchedRank peer;
    bool has_left = false;                    // the watching thread's
    std::atomic<int> error = 0;               // how its connection was closed; 0: by the other end
    std::atomic<std::int64_t> closed_at = 0;  // 0: it is not
  };

  void watch() noexcept;
  bool read(Watched& from) noexcept;
  void look() const;

  const GlobalRank own_;
  const KeepAliveOptions options_;
  std::deque<Watched> ranks_;
  std::atomic<bool> any_closed_ = false;  // of those who have not left
  bool left_ = false;
  int stop_;
  std::thread thread_;  // the last: it uses the others
};

}  // namespace smp::d2d
