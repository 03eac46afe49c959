// d2d/wires/local/local_hub.h: what the wires between ranks of one OS thread share: mailboxes,
// simulated delays, a trace. For tests, debugging and the deterministic simulator. Threads: one.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "d2d/wire/byte_buffer.h"
#include "d2d/wire/members.h"
#include "d2d/wire/wire.h"
#include "fiber/sim_clock.h"

namespace smp::d2d {

struct LocalOptions {
  /// The clock whose events the arrivals of bytes are; without one they arrive at once.
  fiber::SimClock* clock = nullptr;
  /// The mean of the exponential delay, in simulated time; every 16th message or so takes 20 times
  /// longer.
  base::Nanoseconds mean_delay = 100;
  /// The time that every message takes exactly, instead of a random delay.
  std::optional<base::Nanoseconds> fixed_delay = std::nullopt;
};

/// The ranks of one process. It outlives the events of its clock.
class LocalHub {
 public:
  /// @throws UsageError  `ranks` is not positive.
  explicit LocalHub(int ranks, LocalOptions options = {});

  int size() const noexcept { return size_; }
  /// The number of control messages posted so far by all ranks: with a channel, one for each frame.
  std::uint64_t frames_sent() const noexcept { return frames_sent_; }
  /// Loses the control message with this number, counted over all ranks from 0. For tests.
  void lose_frame(std::uint64_t number) { lost_.push_back(number); }

 private:
  friend class LocalWire;
  struct Control {
    int source;  // position among the members, as all numbers here
    ByteBuffer bytes;
  };
  struct Posted {  // a receive
    std::span<std::byte> bytes;
    Token token;
  };
  using Transfer = std::pair<int, TransferId>;  // of a source
  // One member's end.
  struct End {
    bool closed = false;  // what arrives is dropped
    std::size_t in_flight = 0;
    std::deque<Control> control;          // arrived
    std::map<Transfer, ByteBuffer> data;  // arrived, not yet handed over
    std::map<Transfer, Posted> receives;
    std::deque<Transfer> ready;  // in both
    std::deque<Token> sent;      // arrived at the other side, not yet reported
  };
  struct Data {
    Transfer transfer;
    Token token;
    ByteBuffer bytes;
  };
  // Wires of the same members, opened by each for the same time.
  struct Space {
    Members members;
    std::vector<End> ends;
    std::vector<base::Nanoseconds> last_arrival;  // of control bytes, by ordered pair

    End& end(int position) { return ends[static_cast<std::size_t>(position)]; }
    void arrive(int destination, Control&& control);
    void arrive(int destination, Data&& data);
  };
  struct SpaceKey {
    std::vector<GlobalRank> members;
    std::size_t opening;
    auto operator<=>(const SpaceKey&) const = default;
  };

  std::shared_ptr<Space> open(GlobalRank rank, const Members& members);
  bool loses_next();
  base::Nanoseconds delay();
  base::Nanoseconds control_arrival(Space& space, int source, int destination);
  void trace(const Space& space, int source, int destination, base::Nanoseconds arrival,
             std::uint64_t content);

  int size_;
  LocalOptions options_;
  BufferPool buffers_;
  std::map<SpaceKey, std::shared_ptr<Space>> spaces_;
  std::map<std::pair<std::vector<GlobalRank>, GlobalRank>, std::size_t> openings_;
  std::vector<std::uint64_t> lost_;
  std::uint64_t frames_sent_ = 0;
};

}  // namespace smp::d2d
