// Eight ranks send to each other in thousands of random orders, in simulated time: everything
// arrives, and nothing waits longer than messages and sleeping ranks can explain.
// SMP_RANDOM_ORDERS=100000 tries as many; SMP_RANDOM_ORDER=4711 tries that one.
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/clock.h"
#include "d2d/wire/random_transfers.h"
#include "d2d/wire/wire_end.h"
#include "d2d/wires/local/local_wire.h"
#include "fiber/sim_clock.h"

namespace smp::d2d {
namespace random_orders_test {

constexpr int kRanks = 8;
constexpr std::size_t kTransfers = 64;
constexpr base::Nanoseconds kMeanDelay = 100;
/// A rank that sleeps while others move on wakes after so many of their steps at the latest.
constexpr int kLongestSleep = 3;

std::uint64_t number_from(const char* name, std::uint64_t otherwise) {
  const char* const value = std::getenv(name);
  return value == nullptr ? otherwise : std::stoull(value);
}

/// What a message of a LocalHub takes at most: 53 random bits, and every 16th takes 20 times as
/// long.
base::Nanoseconds longest_delay() {
  return 1 + static_cast<base::Nanoseconds>(20 * 53 * std::log(2.0) * kMeanDelay);
}

/// Until a message is there, and its receiver awake. Each step takes no longer than a message.
base::Nanoseconds longest_wait() {
  return longest_delay() * (1 + kLongestSleep + 1) + static_cast<base::Nanoseconds>(kTransfers);
}

/// One order of everything, from its seed.
class RandomOrder {
 public:
  explicit RandomOrder(std::uint64_t seed)
      : clock_(seed),
        random_(seed),
        plan_(random_transfers(Members::all(kRanks), kTransfers, seed, 2'000)),
        times_(kTransfers) {
    const auto hub = std::make_shared<LocalHub>(
        kRanks, LocalOptions{.clock = &clock_, .mean_delay = kMeanDelay});
    for (int rank = 0; rank < kRanks; ++rank) {
      auto& each = ranks_.emplace_back(std::make_unique<Rank>());
      each->end = std::make_unique<WireEnd>(std::make_unique<LocalWire>(hub, GlobalRank(rank)));
      each->part = std::make_unique<TransferPart>(*each->end, plan_, seed);
      each->part->overwrites_sent = true;
      each->part->on_start = [this](std::size_t index, TransferPart::Side side) {
        auto& times = times_[index];
        (side == TransferPart::Side::kSends ? times.sent : times.received) = clock_.now();
      };
      each->part->on_announcement = [this](std::size_t index) {
        note_wait(clock_.now() - std::max(times_[index].sent, base::Nanoseconds{0}));
      };
    }
  }
  ~RandomOrder() { drain(); }
  RandomOrder(const RandomOrder&) = delete;
  RandomOrder& operator=(const RandomOrder&) = delete;

  /// Whether all came to an end.
  bool run() {
    // Each step moves a message, or wakes all who sleep.
    for (std::size_t step = 0; step < 1'000 * kTransfers && !done(); ++step) {
      const bool moved = clock_.advance();
      std::shuffle(ranks_.begin(), ranks_.end(), random_);
      for (auto& rank : ranks_) {
        if (moved && rank->sleep++ < kLongestSleep && random_() % 4 == 0) continue;
        rank->sleep = 0;
        wake(*rank);
      }
    }
    return done();
  }
  void expect_right() {
    for (auto& rank : ranks_) rank->part->expect_right();
  }
  base::Nanoseconds longest() const { return longest_; }

 private:
  struct Rank {
    std::unique_ptr<WireEnd> end;
    std::unique_ptr<TransferPart> part;
    int sleep = 0;  // steps
    std::size_t sent = 0, received = 0;
  };
  struct Times {
    base::Nanoseconds sent = -1, received = -1;  // when each side started
  };

  bool done() const {
    return std::all_of(ranks_.begin(), ranks_.end(), [](const auto& rank) {
      return rank->part->done() && rank->end->wire().drained();
    });
  }
  void wake(Rank& rank) {
    const auto act = [&] { rank.part->act(random_() % 3); };
    if (random_() % 2 == 0) act();
    rank.end->wire().poll();
    for (; rank.received < rank.end->received.size(); ++rank.received) {
      const auto& times = times_[rank.end->received[rank.received]];
      note_wait(clock_.now() - std::max(times.sent, times.received));
    }
    for (; rank.sent < rank.end->sent.size(); ++rank.sent) {
      note_wait(clock_.now() - times_[rank.end->sent[rank.sent]].sent);
    }
    act();
  }
  void note_wait(base::Nanoseconds wait) { longest_ = std::max(longest_, wait); }
  /// Events of the clock know the hub.
  void drain() {
    while (clock_.advance()) continue;
  }

  fiber::SimClock clock_;
  std::mt19937_64 random_;
  std::vector<PlannedTransfer> plan_;
  std::vector<Times> times_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  base::Nanoseconds longest_ = 0;
};

TEST(RandomOrders, OfEightRanksAllEndAndNobodyWaitsForLong) {
  const std::uint64_t only = number_from("SMP_RANDOM_ORDER", 0);
  const std::uint64_t orders = only > 0 ? 1 : number_from("SMP_RANDOM_ORDERS", 3'000);
  base::Nanoseconds longest = 0;
  for (std::uint64_t i = 0; i < orders; ++i) {
    const std::uint64_t seed = only > 0 ? only : i + 1;
    RandomOrder order(seed);
    ASSERT_TRUE(order.run()) << "SMP_RANDOM_ORDER=" << seed << " does not end";
    order.expect_right();
    ASSERT_LE(order.longest(), longest_wait()) << "SMP_RANDOM_ORDER=" << seed;
    ASSERT_FALSE(HasFailure()) << "SMP_RANDOM_ORDER=" << seed;
    longest = std::max(longest, order.longest());
  }
  std::cout << orders << " orders; the longest wait was " << longest << " ns, at most "
            << longest_wait() << " ns are explained\n";
}

}  // namespace random_orders_test
}  // namespace smp::d2d
