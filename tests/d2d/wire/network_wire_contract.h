// What wires between machines promise, run on each of them over the loopback device of this one.
// A `Network` has a name for messages, `kName`, and makes connected wires:
// `static std::vector<std::unique_ptr<Wire>> make_wires(const Members&)`. If it has sizes at which
// it changes its way, `static std::vector<std::size_t> edges()` names them.
#pragma once

#include <gmock/gmock.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "d2d/channel/channel_cluster.h"
#include "d2d/wire/wire_contract.h"
#include "smp/error.h"

namespace smp::d2d {

/// Wires between `members`, all of this process, each with an endpoint of its own.
template <class NetworkWire, class MakeEndpoint, class... Options>
std::vector<std::unique_ptr<Wire>> connect_wires(const Members& members,
                                                 const MakeEndpoint& make_endpoint,
                                                 const Options&... options) {
  std::vector<decltype(make_endpoint())> endpoints;
  std::vector<std::string> addresses;
  for (int i = 0; i < members.size(); ++i) {
    endpoints.push_back(make_endpoint());
    addresses.push_back(endpoints.back()->address());
  }
  std::vector<std::unique_ptr<Wire>> wires;
  for (int i = 0; i < members.size(); ++i) {
    wires.push_back(std::make_unique<NetworkWire>(members[i], members,
                                                  std::move(endpoints[static_cast<std::size_t>(i)]),
                                                  addresses, options...));
  }
  return wires;
}

/// All wires of the process leave together.
inline bool leave_all(const std::vector<Wire*>& wires) {
  const base::SteadyClock clock;
  const auto end = clock.now() + 30 * base::kSecond;
  for (std::size_t left = 0; left < wires.size();) {
    if (clock.now() > end) return false;
    left = 0;
    for (auto* const wire : wires) {
      if (wire->leave()) ++left;
    }
  }
  return true;
}

/// For wire_contract.h.
template <class Network>
class NetworkWires : public WireCluster {
 public:
  explicit NetworkWires(const Members& members = Members({GlobalRank(3), GlobalRank(0),
                                                          GlobalRank(4)})) {
    for (auto& wire : Network::make_wires(members)) {
      ends_.push_back(std::make_unique<WireEnd>(std::move(wire)));
    }
  }
  std::vector<std::size_t> edges() const override {
    if constexpr (requires { Network::edges(); }) return Network::edges();
    return {};
  }
  ~NetworkWires() override {
    std::vector<Wire*> wires;
    for (auto& end : ends_) wires.push_back(&end->wire());
    EXPECT_TRUE(leave_all(wires));
  }
};

/// For channel_contract.h and channel_tensors_contract.h.
template <class Network>
class NetworkCluster : public Cluster {
 public:
  NetworkCluster() {
    for (auto& wire : Network::make_wires(Members::all(4))) {
      players_.push_back(std::make_unique<Player>(Routes(std::move(wire))));
    }
  }
};

/// The same, with a second thread for each rank.
template <class Network>
struct NetworkClusterWithThreads : NetworkCluster<Network> {
  NetworkClusterWithThreads() {
    for (auto& player : this->players_) player->channel->move_beside_rank();
  }
};

/// Two ranks, of which one may go without a word.
template <class Network>
class NetworkPair : public testing::Test {
 protected:
  /// Polls, as a rank does that waits, until some wire tells what it lost.
  std::string loss() {
    const base::SteadyClock clock;
    const auto end = clock.now() + 30 * base::kSecond;
    while (clock.now() < end) try {
        for (auto& wire : wires_) {
          if (!wire) continue;
          wire->poll();
          wire->check_links();
        }
      } catch (const PeerLostError& error) {
        return error.what();
      }
    return "nothing";
  }
  void poll_all(int times = 1) {
    for (int i = 0; i < times; ++i) {
      for (auto& wire : wires_) wire->poll();
    }
  }
  /// From then on both know each other.
  void greet() {
    ByteBuffer greeting = wires_[0]->buffers().take();
    greeting.resize(10);
    wires_[0]->post(GlobalRank(1), std::move(greeting));
    while (!wires_[0]->drained()) poll_all();
    poll_all(1'000);
  }
  std::vector<std::unique_ptr<Wire>> wires_ = Network::make_wires(Members::all(2));
};
TYPED_TEST_SUITE_P(NetworkPair);

TYPED_TEST_P(NetworkPair, ARankThatIsGoneIsLost) {
  this->greet();
  this->wires_[1].reset();  // without a goodbye
  EXPECT_THAT(
      this->loss(),
      testing::AllOf(testing::HasSubstr("rank 0"), testing::HasSubstr("rank 1"),
                     testing::HasSubstr(TypeParam::kName), testing::HasSubstr("checkpoint")));
  EXPECT_THROW(this->wires_[0]->post(GlobalRank(1), {}), PeerLostError);
}

/// Last words among them.
TYPED_TEST_P(NetworkPair, AllThatARankSaidBeforeItWentIsRead) {
  constexpr int kMessages = 100;  // more than one look takes
  this->greet();
  WireEnd staying(std::move(this->wires_[0]));
  auto going = std::make_unique<WireEnd>(std::move(this->wires_[1]));
  for (int i = 0; i < kMessages; ++i) going->post(GlobalRank(0), Bytes(10, std::byte(i)));
  while (!going->wire().drained()) {
    going->wire().poll();
    staying.wire().complete();  // without reading them
  }
  going.reset();  // without a goodbye
  const base::SteadyClock clock;
  const auto end = clock.now() + 30 * base::kSecond;
  const auto listen = [&] {
    while (clock.now() < end) {
      staying.wire().poll();
      staying.wire().check_links();
    }
  };
  EXPECT_THROW(listen(), PeerLostError);
  ASSERT_EQ(staying.control[1].size(), kMessages);
  EXPECT_EQ(staying.control[1].back(), Bytes(10, std::byte(kMessages - 1)));
}

TYPED_TEST_P(NetworkPair, LeavesWhenBothHaveSaidGoodbye) {
  auto& wires = this->wires_;
  this->greet();
  for (int i = 0; i < 1000; ++i) {
    EXPECT_FALSE(wires[0]->leave());
    wires[1]->poll();
  }
  EXPECT_TRUE(leave_all({wires[0].get(), wires[1].get()}));
  wires[1].reset();
  for (int i = 0; i < 1000; ++i) wires[0]->poll();
}

/// Who goes last closes its connections at once, and may do so before its goodbye was read.
TYPED_TEST_P(NetworkPair, ARankThatHasSaidGoodbyeAndClosedIsNotLost) {
  auto& wires = this->wires_;
  this->greet();
  wires[0]->leave();
  for (int i = 0; i < 100'000 && !wires[1]->leave(); ++i) wires[0]->poll();
  ASSERT_TRUE(wires[1]->leave());
  wires[1].reset();
  for (int i = 0; i < 100'000; ++i) wires[0]->poll();
  EXPECT_TRUE(leave_all({wires[0].get()}));
}

/// Or a rank that waits for ever would seem to get on.
TYPED_TEST_P(NetworkPair, LookingWhetherAPeerIsThereIsNoProgress) {
  this->greet();
  for (auto& wire : this->wires_) wire->check_links();
  for (int i = 0; i < 1000; ++i) {
    for (auto& wire : this->wires_) EXPECT_FALSE(wire->poll());
  }
}

/// Either end may be the one that notices, and say it from its side.
TYPED_TEST_P(NetworkPair, ReceivingLessThanWasSentIsAnError) {
  const Bytes bytes(100'000);
  Bytes place(90'000);
  this->wires_[1]->receive(place, GlobalRank(0), 1, 1);
  this->wires_[0]->send(bytes, GlobalRank(1), 1, 1);
  EXPECT_THAT(this->loss(), testing::AnyOf(testing::HasSubstr("receiving 90000 bytes from rank 0"),
                                           testing::HasSubstr("sending 100000 bytes to rank 1")));
}

TYPED_TEST_P(NetworkPair, ASenderThatIsGoneInTheMiddleOfATransferIsLost) {
  this->greet();
  const Bytes bytes(50'000'000);
  Bytes place(bytes.size());
  this->wires_[1]->receive(place, GlobalRank(0), 1, 1);
  this->wires_[0]->send(bytes, GlobalRank(1), 1, 1);
  this->poll_all(3);
  this->wires_[0].reset();
  EXPECT_THAT(this->loss(),
              testing::AllOf(testing::HasSubstr("rank 0"), testing::HasSubstr("rank 1")));
}

REGISTER_TYPED_TEST_SUITE_P(NetworkPair, ARankThatIsGoneIsLost, AllThatARankSaidBeforeItWentIsRead,
                            LeavesWhenBothHaveSaidGoodbye,
                            ARankThatHasSaidGoodbyeAndClosedIsNotLost,
                            LookingWhetherAPeerIsThereIsNoProgress,
                            ReceivingLessThanWasSentIsAnError,
                            ASenderThatIsGoneInTheMiddleOfATransferIsLost);

// ---- a rank that computes ----------------------------------------------------------------------

template <class Network>
class NetworkBesideComputing : public testing::Test {
 protected:
  Player& sender() { return *cluster_.players()[0]; }
  Player& receiver() { return *cluster_.players()[1]; }
  /// While only rank 0 polls.
  bool leaves_within(base::Nanoseconds most) {
    const base::SteadyClock clock;
    for (const auto end = clock.now() + most; clock.now() < end;) {
      sender().channel->poll();
      if (sender().channel->drained()) return true;
    }
    return false;
  }
  NetworkCluster<Network> cluster_;
};
TYPED_TEST_SUITE_P(NetworkBesideComputing);

TYPED_TEST_P(NetworkBesideComputing, GetsATensorWithAThreadAndNoneWithout) {
  const auto large = at::rand({4 << 20});
  this->sender().send(1, {"large", {large}});
  EXPECT_FALSE(this->leaves_within(100 * base::kMillisecond)) << "nobody polls at the receiver";
  this->receiver().channel->move_beside_rank();
  EXPECT_TRUE(this->leaves_within(30 * base::kSecond));
  EXPECT_TRUE(this->receiver().arrived.empty()) << "it has not polled";
  this->cluster_.run_until(
      [](Player& player) { return player.rank() != 1 || player.arrived.size() == 1; });
  EXPECT_TRUE(this->receiver().arrived.at(0).frame.tensors[0].equal(large));
}

REGISTER_TYPED_TEST_SUITE_P(NetworkBesideComputing, GetsATensorWithAThreadAndNoneWithout);

}  // namespace smp::d2d
