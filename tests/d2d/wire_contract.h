// What every wire promises: one suite, run on each implementation. A WireCluster plays one, several
// or all of the ranks; the tests give every rank it plays the same part.
#pragma once

#include <gmock/gmock.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "d2d/wire.h"

namespace smp::d2d {

using Bytes = std::vector<std::byte>;

inline Bytes random_bytes(std::size_t size, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  Bytes bytes(size);
  for (std::size_t i = 0; i < size; i += sizeof(std::uint64_t)) {
    const std::uint64_t bits = random();
    std::memcpy(bytes.data() + i, &bits, std::min(sizeof bits, size - i));
  }
  return bytes;
}

/// A rank's end of a wire, and what it was told.
class WireEnd final : private WireHandler {
 public:
  explicit WireEnd(std::unique_ptr<Wire> wire) : wire_(std::move(wire)) {
    wire_->set_handler(this);
  }
  Wire& wire() { return *wire_; }
  int rank() const { return wire_->rank().value(); }

  void post(GlobalRank peer, const Bytes& bytes) {
    ByteBuffer buffer = wire_->buffers().take();
    buffer.resize(bytes.size());
    std::copy(bytes.begin(), bytes.end(), buffer.data());
    wire_->post(peer, std::move(buffer));
  }

  std::map<int, std::vector<Bytes>> control;  // by source
  std::vector<Token> sent;
  std::vector<Token> received;
  std::function<void(GlobalRank source, const Bytes&)> answer;

 private:
  void on_control(GlobalRank source, ByteBuffer&& bytes) override {
    control[source.value()].emplace_back(bytes.span().begin(), bytes.span().end());
    wire_->buffers().give(std::move(bytes));
    if (answer) answer(source, control[source.value()].back());
  }
  void on_sent(Token token) override { sent.push_back(token); }
  void on_received(Token token) override { received.push_back(token); }

  std::unique_ptr<Wire> wire_;
};

/// Connected ends. Subclasses connect them and move messages on.
class WireCluster {
 public:
  virtual ~WireCluster() = default;
  std::vector<std::unique_ptr<WireEnd>>& ends() { return ends_; }
  const Members& members() { return ends_.front()->wire().members(); }

  /// Moves bytes until `done` holds for every end and all have drained.
  void run_until(const std::function<bool(WireEnd&)>& done) {
    const base::SteadyClock clock;
    const base::Nanoseconds deadline = clock.now() + 60 * base::kSecond;
    const auto is_done = [&](auto& end) { return done(*end) && end->wire().drained(); };
    const auto all = static_cast<std::ptrdiff_t>(ends_.size());
    while (std::count_if(ends_.begin(), ends_.end(), is_done) < all) {
      SMP_ASSERT(clock.now() < deadline, "the wires did not get there within 60 s");
      advance();
    }
    settle();
  }
  /// Of the memory that transfers are between.
  virtual MemoryKind kind() const { return MemoryKind::kHost; }

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
  constexpr std::size_t kSizes[] = {10, 0, 300'000, 1, 5'000, 4'096, 4'097, 64, 70'000, 3};
  constexpr std::size_t kMessages = 100;
  const auto message = [&](int source, int destination, std::size_t i) {
    return random_bytes(kSizes[i % std::size(kSizes)], i * 100 + source * 10 + destination);
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
  const std::vector<std::size_t> sizes{1,     63,    64,     65,      4'095,    4'096,
                                       4'097, 9'999, 10'000, 100'001, 3'000'000};
  struct Transfer {
    Bytes bytes;
    Bytes place;
  };
  std::map<std::tuple<int, int, std::size_t>, Transfer> transfers;
  const auto receive = [&](WireEnd& end, GlobalRank peer, std::size_t i) {
    Bytes& place = transfers[{end.rank(), peer.value(), i}].place;
    place.resize(sizes[i]);
    end.wire().receive(place, peer, 100 + i, i);
  };
  this->for_each_pair([&](WireEnd& end, GlobalRank peer) {
    for (std::size_t i = 0; i < sizes.size(); i += 2) receive(end, peer, i);
  });
  this->for_each_pair([&](WireEnd& end, GlobalRank peer) {
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      Transfer& transfer = transfers[{end.rank(), peer.value(), i}];
      transfer.bytes = random_bytes(sizes[i], i * 100 + end.rank() * 10 + peer.value());
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
      EXPECT_EQ((transfers[{end.rank(), peer.value(), i}].place),
                random_bytes(sizes[i], i * 100 + peer.value() * 10 + end.rank()));
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

REGISTER_TYPED_TEST_SUITE_P(WireContract, KnowsItsMembers,
                            KeepsControlBytesInOrderWhateverTheirSize,
                            BringsDataToWhereItIsReceivedInAnyOrder, CarriesManyTransfersAtOnce,
                            ReportsWhatHasLeftBeforeItsAnswer,
                            CompletesTransfersWithoutReadingControlBytes, LetsTheHandlerAnswer);

}  // namespace smp::d2d
