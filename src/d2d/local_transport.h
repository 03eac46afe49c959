// d2d/local_transport.h: frames between ranks that share one OS thread, with simulated delays.
// For tests, debugging and the deterministic simulator (§4.4). Threads: one.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/sim_clock.h"
#include "d2d/transport.h"

namespace smp::d2d {

struct LocalOptions {
  /// Frames arrive as events of this clock; without one, at the receiver's next poll.
  base::SimClock* clock = nullptr;
  /// Mean of the exponential delay, in simulated time; every 16th frame or so takes 20 times
  /// longer.
  base::Nanoseconds mean_delay = 100;
  /// Every frame takes exactly this long instead.
  std::optional<base::Nanoseconds> fixed_delay = std::nullopt;
  /// Frames with a larger tensor may be overtaken, as on a real wire.
  std::size_t inline_bytes = kInlineBytes;
};

class LocalTransport;

/// What the transports of one process share.
class LocalHub {
 public:
  /// @throws UsageError  `ranks` is not positive.
  explicit LocalHub(int ranks, LocalOptions options = {});

  int size() const noexcept { return static_cast<int>(mailboxes_.size()); }
  /// Frames sent so far by all ranks.
  std::uint64_t frames_sent() const noexcept { return frames_sent_; }
  /// The frame with this number, counted over all ranks from 0, will be lost. For tests.
  void lose_frame(std::uint64_t number) { lost_.push_back(number); }

 private:
  friend class LocalTransport;
  struct Mail {
    int source;
    Frame frame;
  };
  struct Mailbox {
    LocalTransport* owner = nullptr;
    std::deque<Mail> arrived;
  };

  bool loses_next();
  base::Nanoseconds arrival(int source, int destination, bool ordered);
  void trace(int source, int destination, base::Nanoseconds arrival, const Frame& frame);

  LocalOptions options_;
  std::vector<Mailbox> mailboxes_;
  std::vector<base::Nanoseconds> last_arrival_;  // by ordered pair
  std::vector<std::size_t> in_flight_;           // by source
  std::vector<std::uint64_t> lost_;
  std::uint64_t frames_sent_ = 0;
};

/// One rank's end. Tensors are copied when they are sent: ranks never share storage.
class LocalTransport final : public Transport {
 public:
  LocalTransport(std::shared_ptr<LocalHub> hub, int rank);
  ~LocalTransport() override;

  int rank() const noexcept override { return rank_; }
  int size() const noexcept override { return hub_->size(); }
  void send(int peer, Frame frame) override;
  bool poll() override;
  bool drained() const noexcept override { return hub_->in_flight_[rank_] == 0; }

 private:
  void count_sent(const Frame& frame);
  void deliver_all();

  std::shared_ptr<LocalHub> hub_;
  int rank_;
  bool delivering_ = false;
};

}  // namespace smp::d2d
