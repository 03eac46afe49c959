// Wires over libfabric keep the contract of wires and of channels, here over TCP within this
// process: as they are, with frames and segments of a few bytes, with memory registered in every
// way, and while everything overtakes everything. A rank that is gone is noticed.
#include "d2d/wires/ofi/ofi_wire.h"

#include <rdma/fi_domain.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "d2d/channel/channel_contract.h"
#include "d2d/wire/network_wire_contract.h"
#include "smp/error.h"

namespace smp::d2d {
namespace ofi_wire_test {

template <class Endpoint>
std::vector<std::unique_ptr<Wire>> connect(const Members& members,
                                           const OfiWireOptions& options = {},
                                           const OfiEndpointOptions& endpoint_options = {}) {
  ::setenv("FI_TCP_IFACE", "lo", /*overwrite=*/1);
  return connect_wires<OfiWire>(
      members, [&] { return std::make_unique<Endpoint>(endpoint_options); }, options);
}

/// Of a segment, and of control bytes that fill frames.
std::vector<std::size_t> edges_of(const OfiWireOptions& options = {}) {
  const std::size_t room = options.frame_bytes - sizeof(OfiTrailer);
  return {room, 2 * room, options.segment_bytes, 2 * options.segment_bytes};
}

struct Tcp {
  static constexpr const char* kName = "libfabric";
  static std::vector<std::size_t> edges() { return edges_of(); }
  static std::vector<std::unique_ptr<Wire>> make_wires(const Members& members) {
    return connect<OfiEndpoint>(members);
  }
};

/// Messages of many frames, transfers of many segments.
struct TinyPieces {
  static constexpr OfiWireOptions kOptions{.frame_bytes = 512, .segment_bytes = 1'000};
  static std::vector<std::size_t> edges() { return edges_of(kOptions); }
  static std::vector<std::unique_ptr<Wire>> make_wires(const Members& members) {
    return connect<OfiEndpoint>(members, kOptions);
  }
};

/// What libfabric's TCP provider does on request: memory named by address, with keys of its own.
/// What is sent is registered as well, as EFA wants it.
struct RegisteredMemory {
  static std::vector<std::size_t> edges() { return edges_of(); }
  static std::vector<std::unique_ptr<Wire>> make_wires(const Members& members) {
    return connect<OfiEndpoint>(members, {}, {.memory_modes = FI_MR_BASIC, .register_local = true});
  }
};

/// Reads completions in an order of its own, many of them late: as if messages and writes overtook
/// each other, and as if their sender learned long after their receiver that they had arrived.
class UnorderedEndpoint final : public OfiEndpoint {
 public:
  using OfiEndpoint::OfiEndpoint;
  void read(std::vector<OfiCompletion>& completions) override {
    OfiEndpoint::read(held_);
    std::shuffle(held_.begin(), held_.end(), random_);
    const std::size_t count = random_() % 4 == 0 ? random_() % (held_.size() + 1) : 0;
    completions.insert(completions.end(), held_.end() - static_cast<std::ptrdiff_t>(count),
                       held_.end());
    held_.resize(held_.size() - count);
  }

 private:
  std::vector<OfiCompletion> held_;
  std::mt19937 random_{7};
};

struct Unordered {
  static constexpr OfiWireOptions kOptions{.frame_bytes = 512, .segment_bytes = 5'000};
  static std::vector<std::size_t> edges() { return edges_of(kOptions); }
  static std::vector<std::unique_ptr<Wire>> make_wires(const Members& members) {
    return connect<UnorderedEndpoint>(members, kOptions);
  }
};

/// Keeps to itself what is over of this rank's own sends and writes, or says that it failed; sends
/// nothing, or something else.
class HoldingEndpoint final : public OfiEndpoint {
 public:
  int send(std::span<const std::byte> bytes, void* descriptor, std::uint64_t peer,
           OfiOperation& operation) override {
    if (refuses) return kLater;
    if (alter) {
      auto trailer = trailer_of(bytes);
      alter(trailer);
      const auto place = bytes.last(sizeof trailer);
      std::memcpy(const_cast<std::byte*>(place.data()), &trailer, sizeof trailer);
    }
    return OfiEndpoint::send(bytes, descriptor, peer, operation);
  }
  void read(std::vector<OfiCompletion>& completions) override {
    fresh_.clear();
    OfiEndpoint::read(fresh_);
    for (auto& completion : fresh_) {
      const bool is_own = completion.operation != nullptr && completion.bytes == 0;
      if (is_own) completion.error = failure;
      if (is_too_long && completion.bytes > 0) {
        completion.error = "truncation";
        completion.is_too_long = true;
        ++too_long;
      }
      (is_own && holds ? held_ : completions).push_back(completion);
    }
    if (holds) return;
    completions.insert(completions.end(), held_.begin(), held_.end());
    held_.clear();
  }
  bool holds = false;
  bool refuses = false;
  bool is_too_long = false;  // what comes from others
  int too_long = 0;
  std::function<void(OfiTrailer&)> alter;
  std::string failure;

 private:
  std::vector<OfiCompletion> fresh_, held_;
};

class OfiPair : public testing::Test {
 protected:
  OfiPair() {
    ::setenv("FI_TCP_IFACE", "lo", /*overwrite=*/1);
    const auto make_endpoint = [this] {
      auto endpoint = std::make_unique<HoldingEndpoint>();
      endpoints_.push_back(endpoint.get());
      return endpoint;
    };
    for (auto& wire : connect_wires<OfiWire>(
             Members::all(2), make_endpoint,
             OfiWireOptions{.frame_bytes = 512, .patience = base::kSecond / 2})) {
      ends_.push_back(std::make_unique<WireEnd>(std::move(wire)));
    }
  }
  Wire& wire(int rank) { return ends_[static_cast<std::size_t>(rank)]->wire(); }
  void poll(int times) {
    for (int i = 0; i < times; ++i) {
      for (auto& end : ends_) end->wire().poll();
    }
  }
  /// Polls until `wire` tells what it lost.
  static std::string loss_of(Wire& wire) {
    const base::SteadyClock clock;
    const auto end = clock.now() + 30 * base::kSecond;
    while (clock.now() < end) try {
        wire.poll();
        wire.check_links();
      } catch (const PeerLostError& error) {
        return error.what();
      }
    return "nothing";
  }
  template <class Done>
  void poll_until(const Done& done) {
    const base::SteadyClock clock;
    const auto end = clock.now() + 30 * base::kSecond;
    while (!done()) {
      ASSERT_LT(clock.now(), end);
      poll(1);
    }
  }

  std::vector<HoldingEndpoint*> endpoints_;
  std::vector<std::unique_ptr<WireEnd>> ends_;
};

// Rank 1 has so much received when it answers that one frame cannot name it all. Of the last
// transfer rank 0 learns late that it has left.
TEST_F(OfiPair, AnAnswerComesAfterTheNewsThatAllHasLeftThatItAnswers) {
  constexpr std::size_t kTransfers = 300;
  constexpr int kFramesAtOnce = 8;
  const Bytes bytes = random_bytes(1'000, 1);
  std::vector<Bytes> places(kTransfers, Bytes(bytes.size()));
  const auto send = [&](std::size_t i) { wire(0).send(bytes, GlobalRank(1), i, i); };
  for (std::size_t i = 0; i < kTransfers; ++i) wire(1).receive(places[i], GlobalRank(0), i, i);
  poll_until([&] { return wire(1).drained(); });

  endpoints_[1]->holds = true;  // what rank 1 posts piles up
  for (int i = 0; i <= kFramesAtOnce; ++i) ends_[1]->post(GlobalRank(0), {});
  for (std::size_t i = 0; i + 1 < kTransfers; ++i) send(i);
  poll_until([&] {
    return ends_[0]->sent.size() == kTransfers - 1 && ends_[1]->received.size() == kTransfers - 1;
  });
  endpoints_[0]->holds = true;
  send(kTransfers - 1);
  poll_until([&] { return ends_[1]->received.size() == kTransfers; });
  ends_[1]->post(GlobalRank(0), Bytes(1));
  endpoints_[1]->holds = false;
  poll(2'000);
  EXPECT_EQ(ends_[0]->control[1].size(), kFramesAtOnce);

  endpoints_[0]->holds = false;
  std::size_t reported = 0;
  ends_[0]->answer = [&](GlobalRank, const Bytes&) { reported = ends_[0]->sent.size(); };
  poll_until([&] { return ends_[0]->control[1].size() == kFramesAtOnce + 2; });
  EXPECT_EQ(reported, kTransfers);
  EXPECT_EQ(places.back(), bytes);
}

TEST_F(OfiPair, AnErrorNamesThePeerAndSaysWhy) {
  Bytes bytes(1'000), place(1'000);
  wire(1).receive(place, GlobalRank(0), 1, 1);
  poll_until([&] { return wire(1).drained(); });
  endpoints_[0]->failure = "no route";
  wire(0).send(bytes, GlobalRank(1), 1, 1);
  EXPECT_THAT(loss_of(wire(0)),
              testing::HasSubstr("rank 0: sending 1000 bytes to rank 1 over libfabric failed "
                                 "(no route): that rank or the network between is gone"));
  EXPECT_THROW(ends_[0]->post(GlobalRank(1), {}), PeerLostError);
}

// libfabric then tries to connect again for ever.
TEST_F(OfiPair, ARankThatHasBeenGoneForLongIsLost) {
  ends_[0]->post(GlobalRank(1), {});
  poll_until([&] { return wire(0).drained(); });
  ends_.pop_back();
  const base::SteadyClock clock;
  for (const auto end = clock.now() + base::kSecond; clock.now() < end;) poll(1);
  EXPECT_THAT(loss_of(wire(0)),
              testing::HasSubstr("rank 0: sending to rank 1 over libfabric failed "
                                 "(nothing could be sent for 0.5 s)"));
}

// Nothing can go on while nobody asks: a module of the program may take longer than the patience.
TEST_F(OfiPair, ARankThatWasNotAskedForLongIsNotLost) {
  ends_[0]->post(GlobalRank(1), Bytes(1));
  poll_until([&] { return ends_[1]->control[0].size() == 1; });
  endpoints_[0]->refuses = true;
  ends_[0]->post(GlobalRank(1), Bytes(2));
  ::usleep(1'200'000);
  wire(0).poll();
  endpoints_[0]->refuses = false;
  poll_until([&] { return ends_[1]->control[0].size() == 2; });
}

TEST_F(OfiPair, AFrameThatAnnouncesTooMuchIsRefusedBeforeMemoryIsTaken) {
  endpoints_[0]->alter = [](OfiTrailer& trailer) { trailer.message_bytes = 3ull << 40; };
  ends_[0]->post(GlobalRank(1), Bytes(2'000));
  std::string loss = "nothing";
  for (int i = 0; i < 100'000 && loss == "nothing"; ++i) try {
      poll(1);
    } catch (const PeerLostError& error) {
      loss = error.what();
    }
  EXPECT_THAT(loss, testing::HasSubstr("rank 1: a frame over libfabric came that makes no sense"));
}

TEST_F(OfiPair, WhoDoesNotKnowTheSecretIsNotHeard) {
  endpoints_[0]->alter = [](OfiTrailer& trailer) { trailer.secret ^= 1; };
  for (int i = 0; i < 200; ++i) ends_[0]->post(GlobalRank(1), Bytes(5));  // all of the receives
  const base::SteadyClock clock;
  for (const auto end = clock.now() + base::kSecond / 2; clock.now() < end;) poll(1);
  EXPECT_TRUE(ends_[1]->control[0].empty());
  ends_[1]->post(GlobalRank(0), Bytes(6));
  poll_until([&] { return ends_[0]->control[1].size() == 1; });
}

/// Nobody can read whether one that is longer than its place has the secret.
TEST_F(OfiPair, AMessageThatIsTooLongIsNotHeard) {
  endpoints_[1]->is_too_long = true;
  for (int i = 0; i < 200; ++i) ends_[0]->post(GlobalRank(1), Bytes(5));  // all of the places
  poll_until([&] { return wire(0).drained() && endpoints_[1]->too_long >= 200; });
  endpoints_[1]->is_too_long = false;
  EXPECT_TRUE(ends_[1]->control[0].empty());
  Bytes bytes(1'000, std::byte{7}), place(1'000);
  wire(0).receive(place, GlobalRank(1), 1, 1);
  wire(1).send(bytes, GlobalRank(0), 1, 1);
  poll_until([&] { return ends_[0]->received.size() == 1; });
  EXPECT_EQ(place, bytes);
}

/// It had said goodbye, and its process ended before all was there.
TEST_F(OfiPair, WhatDoesNotReachARankThatHasLeftIsOver) {
  Bytes bytes(5'000'000), place(5'000'000);
  wire(1).receive(place, GlobalRank(0), 1, 1);
  poll_until([&] { return wire(1).drained(); });
  wire(1).leave();
  poll_until([&] { return wire(1).drained(); });
  poll(1'000);
  endpoints_[0]->failure = "reset";
  wire(0).send(bytes, GlobalRank(1), 1, 1);
  poll_until([&] { return wire(0).drained(); });
  EXPECT_EQ(ends_[0]->sent.size(), 1U);
}

TEST_F(OfiPair, AMessageThatEndsTooEarlyIsNotHandedOn) {
  endpoints_[0]->alter = [](OfiTrailer& trailer) { trailer.message_bytes += 100; };
  ends_[0]->post(GlobalRank(1), Bytes(2'000));
  EXPECT_THROW(
      {
        for (int i = 0; i < 100'000 && ends_[1]->control[0].empty(); ++i) poll(1);
      },
      InternalError);
  EXPECT_TRUE(ends_[1]->control[0].empty());
}

TEST(OfiEndpoint, RefusesOneOfAnotherProvider) {
  ::setenv("FI_TCP_IFACE", "lo", /*overwrite=*/1);
  OfiEndpoint endpoint;
  const auto own = endpoint.address();
  EXPECT_EQ(endpoint.peer(own), 0);
  try {
    endpoint.peer("efa" + own.substr(own.find('\0')));
    ADD_FAILURE();
  } catch (const PeerLostError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("libfabric uses tcp;ofi_rxm here and efa there"));
  }
}

using AllWires = testing::Types<NetworkWires<Tcp>, NetworkWires<TinyPieces>,
                                NetworkWires<RegisteredMemory>, NetworkWires<Unordered>>;
using AllClusters =
    testing::Types<NetworkCluster<Tcp>, NetworkClusterWithThreads<Tcp>, NetworkCluster<Unordered>>;
INSTANTIATE_TYPED_TEST_SUITE_P(ofi_wire_test, WireContract, AllWires);
INSTANTIATE_TYPED_TEST_SUITE_P(ofi_wire_test, NetworkPair, Tcp);
INSTANTIATE_TYPED_TEST_SUITE_P(ofi_wire_test, NetworkBesideComputing, Tcp);
INSTANTIATE_TYPED_TEST_SUITE_P(ofi_wire_test, ChannelContract, AllClusters);
INSTANTIATE_TYPED_TEST_SUITE_P(ofi_wire_test, ChannelTensorsContract, AllClusters);

}  // namespace ofi_wire_test
}  // namespace smp::d2d
