// What every wire promises: one suite, run on each implementation. A WireCluster plays one, several
// or all of the ranks; the tests give every rank it plays the same part.
#pragma once

#include <gmock/gmock.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "d2d/wire/random_transfers.h"
#include "d2d/wire/wire.h"
#include "d2d/wire/wire_end.h"
#include "d2d/wire/wire_pattern.h"
#include "support/free_memory.h"

namespace smp::d2d {

/// Connected ends. Subclasses connect them and move messages on.
class WireCluster {
 public:
  virtual ~WireCluster() = default;
  std::vector<std::unique_ptr<WireEnd>>& ends() { return ends_; }
  const Members& members() { return ends_.front()->wire().members(); }

  /// Moves bytes until `done` holds for every end and all have drained.
  void run_until(const std::function<bool(WireEnd&)>& done,
                 base::Nanoseconds patience = 60 * base::kSecond) {
    const base::SteadyClock clock;
    const base::Nanoseconds deadline = clock.now() + patience;
    const auto is_done = [&](auto& end) { return done(*end) && end->wire().drained(); };
    const auto all = static_cast<std::ptrdiff_t>(ends_.size());
    while (std::count_if(ends_.begin(), ends_.end(), is_done) < all) {
      SMP_ASSERT(clock.now() < deadline, "the wires did not get there within ",
                 patience / base::kSecond, " s");
      advance();
    }
    settle();
  }
  /// Of the memory that transfers are between.
  virtual MemoryKind kind() const { return MemoryKind::kHost; }
  /// Sizes of control bytes or data at which the wire does something else from then on.
  virtual std::vector<std::size_t> edges() const { return {}; }

 protected:
  virtual void advance() {
    for (auto& end : ends_) end->wire().poll();
  }
  /// Where a transfer is complete before its bytes can be read here: waits for them.
  virtual void settle() {}
  std::vector<std::unique_ptr<WireEnd>> ends_;
};

template <class ClusterType>
class WireContract : public testing::Test {
 protected:
  // Calls `action` with every end and each of its peers.
  template <class Action>
  void for_each_pair(const Action& action) {
    for (auto& end : cluster_.ends()) {
      for (const GlobalRank peer : cluster_.members()) {
        if (end->wire().reaches(peer)) action(*end, peer);
      }
    }
  }
  int peers() { return cluster_.members().size() - 1; }

  /// `sizes`, and those at and beside the edges of this wire, up to `longest`.
  std::vector<std::size_t> with_edges(std::vector<std::size_t> sizes, std::size_t longest) const {
    for (const std::size_t edge : cluster_.edges()) {
      if (edge > longest) continue;
      sizes.insert(sizes.end(), {edge - 1, edge, edge + 1});
    }
    return sizes;
  }
  /// The first member sends to the second one.
  void expect_carries_one(std::size_t size, base::Nanoseconds patience = 60 * base::kSecond) {
    const GlobalRank sender = cluster_.members()[0], receiver = cluster_.members()[1];
    const WirePattern pattern(sender.value(), receiver.value(), 1);
    Bytes bytes;
    std::optional<GuardedPlace> place;
    for (auto& end : cluster_.ends()) {
      Wire& wire = end->wire();
      if (wire.rank() == sender) wire.send(bytes = pattern.bytes(size), receiver, 1, 1);
      if (wire.rank() == receiver) wire.receive(place.emplace(size).bytes(), sender, 1, 1);
    }
    cluster_.run_until(
        [&](WireEnd& end) {
          return end.sent.size() == (end.wire().rank() == sender ? 1 : 0) &&
                 end.received.size() == (end.wire().rank() == receiver ? 1 : 0);
        },
        patience);
    if (!place) return;
    EXPECT_EQ(pattern.difference(place->bytes()), "");
    EXPECT_TRUE(place->intact());
  }
  /// Whether all ranks do: what one of them sees the others need not.
  bool all_agree(bool own) {
    for_each_pair([&](WireEnd& end, GlobalRank peer) { end.post(peer, Bytes(1, std::byte{own})); });
    cluster_.run_until(
        [&](WireEnd& end) { return end.control.size() == static_cast<std::size_t>(peers()); });
    bool all = own;
    for_each_pair([&](WireEnd& end, GlobalRank peer) {
      all &= end.control[peer.value()].front() == Bytes(1, std::byte{1});
    });
    return all;
  }

  ClusterType cluster_;
};

TYPED_TEST_SUITE_P(WireContract);

TYPED_TEST_P(WireContract, KnowsItsMembers) {
  for (auto& end : this->cluster_.ends()) {
    const Wire& wire = end->wire();
    EXPECT_TRUE(wire.members().contain(wire.rank()));
    EXPECT_FALSE(wire.reaches(wire.rank())) << "itself";
    EXPECT_FALSE(wire.reaches(GlobalRank(1000)));
    EXPECT_FALSE(wire.reaches(GlobalRank()));
    EXPECT_TRUE(wire.reaches(this->cluster_.kind()));
    EXPECT_TRUE(wire.drained());
  }
}

TYPED_TEST_P(WireContract, KeepsControlBytesInOrderWhateverTheirSize) {
  const std::vector<std::size_t> sizes =
      this->with_edges({10, 0, 300'000, 1, 5'000, 4'096, 4'097, 64, 70'000, 3}, 300'000);
  constexpr std::size_t kMessages = 100;
  const auto message = [&](int source, int destination, std::size_t i) {
    return WirePattern(source, destination, i).bytes(sizes[i % sizes.size()]);
  };
  this->for_each_pair([&](WireEnd& end, GlobalRank peer) {
    for (std::size_t i = 0; i < kMessages; ++i) {
      end.post(peer, message(end.rank(), peer.value(), i));
    }
  });
  this->cluster_.run_until([&](WireEnd& end) {
    return std::count_if(end.control.begin(), end.control.end(), [](const auto& from) {
             return from.second.size() == kMessages;
           }) == this->peers();
  });
  this->for_each_pair([&](WireEnd& end, GlobalRank peer) {
    for (std::size_t i = 0; i < kMessages; ++i) {
      EXPECT_EQ(end.control[peer.value()][i], message(peer.value(), end.rank(), i)) << i;
    }
  });
}

// Data of every size goes to all, received in reverse order, partly before it is sent.
TYPED_TEST_P(WireContract, BringsDataToWhereItIsReceivedInAnyOrder) {
  const std::vector<std::size_t> sizes = this->with_edges(
      {1, 63, 64, 65, 4'095, 4'096, 4'097, 9'999, 10'000, 100'001, 3'000'000}, 10'000'000);
  struct Transfer {
    Bytes bytes;
    GuardedPlace place;
  };
  std::map<std::tuple<int, int, std::size_t>, Transfer> transfers;
  const auto receive = [&](WireEnd& end, GlobalRank peer, std::size_t i) {
    GuardedPlace& place = transfers[{end.rank(), peer.value(), i}].place;
    place = GuardedPlace(sizes[i]);
    end.wire().receive(place.bytes(), peer, 100 + i, i);
  };
  this->for_each_pair([&](WireEnd& end, GlobalRank peer) {
    for (std::size_t i = 0; i < sizes.size(); i += 2) receive(end, peer, i);
  });
  this->for_each_pair([&](WireEnd& end, GlobalRank peer) {
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      Transfer& transfer = transfers[{end.rank(), peer.value(), i}];
      transfer.bytes = WirePattern(end.rank(), peer.value(), i).bytes(sizes[i]);
      end.wire().send(transfer.bytes, peer, 100 + i, 1'000 + i);
    }
    EXPECT_FALSE(end.wire().drained());
  });
  this->for_each_pair([&](WireEnd& end, GlobalRank peer) {
    EXPECT_THAT(end.received, testing::IsEmpty()) << "told outside of poll";
    for (std::size_t i = sizes.size(); i-- > 0;) {
      if (i % 2 == 1) receive(end, peer, i);
    }
  });
  const std::size_t total = sizes.size() * static_cast<std::size_t>(this->peers());
  this->cluster_.run_until([&](WireEnd& end) { return end.received.size() == total; });
  this->for_each_pair([&](WireEnd& end, GlobalRank peer) {
    EXPECT_EQ(end.sent.size(), total);
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      EXPECT_EQ(std::count(end.sent.begin(), end.sent.end(), 1'000 + i), this->peers());
      EXPECT_EQ(std::count(end.received.begin(), end.received.end(), i), this->peers());
      GuardedPlace& place = transfers[{end.rank(), peer.value(), i}].place;
      EXPECT_EQ(WirePattern(peer.value(), end.rank(), i).difference(place.bytes()), "");
      EXPECT_TRUE(place.intact()) << sizes[i];
    }
  });
}

// More transfers than are tested at once, to and from everyone.
TYPED_TEST_P(WireContract, CarriesManyTransfersAtOnce) {
  constexpr std::size_t kTransfers = 500;
  constexpr std::size_t kBytes = 8'000;
  std::map<std::pair<int, int>, Bytes> places;
  const Bytes bytes = random_bytes(kTransfers * kBytes, 5);
  this->for_each_pair([&](WireEnd& end, GlobalRank peer) {
    Bytes& place = places[{end.rank(), peer.value()}];
    place.resize(bytes.size());
    for (std::size_t i = 0; i < kTransfers; ++i) {
      const std::size_t start = i * kBytes;
      end.wire().receive(std::span(place).subspan(start, kBytes), peer, i, i);
      end.wire().send(std::span(bytes).subspan(start, kBytes), peer, i, i);
    }
  });
  const std::size_t total = kTransfers * static_cast<std::size_t>(this->peers());
  this->cluster_.run_until([&](WireEnd& end) { return end.received.size() == total; });
  for (const auto& [pair, place] : places) EXPECT_EQ(place, bytes);
}

// With many transfers in flight an answer must not come before the completion of what it answers.
TYPED_TEST_P(WireContract, ReportsWhatHasLeftBeforeItsAnswer) {
  constexpr std::size_t kTransfers = 300;
  const Bytes bytes = random_bytes(100'000, 6);
  const std::vector<GlobalRank>& ranks = this->cluster_.members().ranks();
  std::vector<Bytes> places(kTransfers, Bytes(bytes.size()));
  std::size_t answered = 0;
  std::size_t reported_at_answer = 0;
  for (auto& end : this->cluster_.ends()) {
    WireEnd* const self = end.get();
    if (self->wire().rank() == ranks[0]) {
      self->answer = [&, self](GlobalRank, const Bytes&) {
        answered = 1;
        reported_at_answer = self->sent.size();
      };
      for (std::size_t i = 0; i < kTransfers; ++i) self->wire().send(bytes, ranks[1], i, i);
    } else if (self->wire().rank() == ranks[1]) {
      for (std::size_t i = 0; i < kTransfers; ++i) {
        self->wire().receive(places[i], ranks[0], i, i);
      }
    }
  }
  bool replied = false;
  this->cluster_.run_until([&](WireEnd& end) {
    if (end.wire().rank() == ranks[1] && end.received.size() == kTransfers && !replied) {
      replied = true;
      end.post(ranks[0], {});
    }
    if (end.wire().rank() == ranks[0]) return answered == 1;
    return end.wire().rank() != ranks[1] || replied;
  });
  for (auto& end : this->cluster_.ends()) {
    if (end->wire().rank() == ranks[0]) {
      EXPECT_EQ(reported_at_answer, kTransfers);
    }
  }
}

TYPED_TEST_P(WireContract, CompletesTransfersWithoutReadingControlBytes) {
  const Bytes bytes = random_bytes(1'000, 7);
  std::map<std::pair<int, int>, Bytes> places;
  this->for_each_pair([&](WireEnd& end, GlobalRank peer) {
    Bytes& place = places[{end.rank(), peer.value()}];
    place.resize(bytes.size());
    end.post(peer, bytes);
    end.wire().send(bytes, peer, 1, 1);
    end.wire().receive(place, peer, 1, 1);
    end.wire().complete();
    EXPECT_THAT(end.control, testing::IsEmpty());
  });
  this->cluster_.run_until([&](WireEnd& end) {
    return end.control.size() == static_cast<std::size_t>(this->peers()) &&
           end.received.size() == static_cast<std::size_t>(this->peers());
  });
}

TYPED_TEST_P(WireContract, LetsTheHandlerAnswer) {
  constexpr std::size_t kHops = 50;
  for (auto& end : this->cluster_.ends()) {
    WireEnd* const self = end.get();
    self->answer = [self](GlobalRank source, const Bytes& bytes) {
      if (bytes.size() < kHops) self->post(source, Bytes(bytes.size() + 1));
    };
  }
  this->for_each_pair([](WireEnd& end, GlobalRank peer) { end.post(peer, Bytes(1)); });
  this->cluster_.run_until([&](WireEnd& end) {
    return std::count_if(end.control.begin(), end.control.end(), [](const auto& from) {
             return from.second.size() == kHops;
           }) == this->peers();
  });
}

TYPED_TEST_P(WireContract, CarriesOneLongTransfer) { this->expect_carries_one(64 << 20); }

// More bytes than an int counts. Only on request: it takes a minute on some wires, and memory.
TYPED_TEST_P(WireContract, CarriesMoreThanTwoGibibytes) {
  if (std::getenv("SMP_TEST_HUGE") == nullptr) {
    GTEST_SKIP() << "SMP_TEST_HUGE=1 carries a transfer of 2 GiB and a byte";
  }
  constexpr std::uint64_t kNeeded = 8ull << 30;
  const std::uint64_t free = free_memory();
  if (!this->all_agree(free >= kNeeded)) {
    GTEST_SKIP() << "8 GiB of free memory are needed; here are " << (free >> 20) << " MiB";
  }
  this->expect_carries_one((std::size_t{1} << 31) + 1, 600 * base::kSecond);
}

// Sizes, directions, the order in which receives and sends are started, and what the receiver knows
// by then, at random.
TYPED_TEST_P(WireContract, CarriesThousandsOfTransfersInAnyOrder) {
  constexpr std::size_t kTransfers = 10'000;
  constexpr std::size_t kStartedAtOnce = 20;
  const auto plan = random_transfers(this->cluster_.members(), kTransfers, 1);
  std::map<int, TransferPart> parts;
  for (auto& end : this->cluster_.ends()) {
    auto& part = parts.try_emplace(end->rank(), *end, plan, 2).first->second;
    part.overwrites_sent = this->cluster_.kind() == MemoryKind::kHost;
  }
  this->cluster_.run_until([&](WireEnd& end) {
    TransferPart& part = parts.at(end.rank());
    part.act(kStartedAtOnce);
    return part.done();
  });
  for (auto& [rank, part] : parts) part.expect_right();
}

REGISTER_TYPED_TEST_SUITE_P(WireContract, KnowsItsMembers,
                            KeepsControlBytesInOrderWhateverTheirSize,
                            BringsDataToWhereItIsReceivedInAnyOrder, CarriesManyTransfersAtOnce,
                            ReportsWhatHasLeftBeforeItsAnswer,
                            CompletesTransfersWithoutReadingControlBytes, LetsTheHandlerAnswer,
                            CarriesOneLongTransfer, CarriesMoreThanTwoGibibytes,
                            CarriesThousandsOfTransfersInAnyOrder);

}  // namespace smp::d2d
