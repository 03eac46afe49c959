// Wires over UCX keep the contract of wires and of channels, here over TCP within this process; and
// a rank that is gone is noticed.
#include "d2d/wires/ucx/ucx_wire.h"

#include <cstdlib>

#include "d2d/channel/channel_contract.h"
#include "d2d/wire/network_wire_contract.h"

namespace smp::d2d {
namespace ucx_wire_test {

struct Ucx {
  static constexpr const char* kName = "UCX";
  static std::vector<std::unique_ptr<Wire>> make_wires(const Members& members) {
    ::setenv("UCX_TLS", "tcp", /*overwrite=*/1);
    ::setenv("UCX_NET_DEVICES", "lo", /*overwrite=*/1);
    ::setenv("UCX_LOG_LEVEL", "error", /*overwrite=*/1);  // some tests end in the middle
    return connect_wires<UcxWire>(members, [] { return std::make_unique<UcxWorker>(); });
  }
};

INSTANTIATE_TYPED_TEST_SUITE_P(ucx_wire_test, WireContract, NetworkWires<Ucx>);
INSTANTIATE_TYPED_TEST_SUITE_P(ucx_wire_test, NetworkPair, Ucx);
using AllClusters = testing::Types<NetworkCluster<Ucx>, NetworkClusterWithThreads<Ucx>>;
INSTANTIATE_TYPED_TEST_SUITE_P(ucx_wire_test, ChannelContract, AllClusters);
INSTANTIATE_TYPED_TEST_SUITE_P(ucx_wire_test, ChannelTensorsContract, AllClusters);
INSTANTIATE_TYPED_TEST_SUITE_P(ucx_wire_test, NetworkBesideComputing, Ucx);

/// Workers of three ranks, and what they listen on.
struct ThreeWorkers {
  ThreeWorkers() {
    Ucx::make_wires(Members::all(2));  // sets what UCX is to use
    for (int i = 0; i < 3; ++i) {
      workers.push_back(std::make_unique<UcxWorker>());
      addresses.push_back(workers.back()->address());
    }
  }
  /// Rank `rank` of a job of `size` ranks.
  std::unique_ptr<UcxWire> wire(int rank, int size, std::uint64_t secret) {
    return std::make_unique<UcxWire>(
        GlobalRank(rank), Members::all(size), std::move(workers[static_cast<std::size_t>(rank)]),
        std::vector(addresses.begin(), addresses.begin() + size), secret);
  }
  std::vector<std::unique_ptr<UcxWorker>> workers;
  std::vector<std::string> addresses;
};

/// Control bytes and a transfer that was asked for under the same number.
TEST(UcxWireTest, WhoDoesNotKnowTheSecretIsNotHeard) {
  Bytes place(9, std::byte{1}), sent(9, std::byte{2});
  ThreeWorkers three;
  WireEnd first(three.wire(0, 3, 77)), second(three.wire(1, 3, 77)), stranger(three.wire(2, 3, 78));
  first.wire().receive(place, GlobalRank(2), 4, 1);
  stranger.post(GlobalRank(0), Bytes(5));
  stranger.wire().send(sent, GlobalRank(0), 4, 1);
  const base::SteadyClock clock;
  const auto poll_all = [&] {
    for (auto* const end : {&first, &second, &stranger}) end->wire().poll();
  };
  for (const auto end = clock.now() + base::kSecond; clock.now() < end;) poll_all();
  EXPECT_TRUE(first.control.empty());
  EXPECT_EQ(place, Bytes(9, std::byte{1}));
  second.post(GlobalRank(0), Bytes(6));
  for (const auto end = clock.now() + 30 * base::kSecond;
       clock.now() < end && first.control[1].empty();) {
    poll_all();
  }
  EXPECT_EQ(first.control[1].size(), 1u);
}

/// It believes that the job has more ranks than it has.
TEST(UcxWireTest, AMessageFromNowhereIsRefused) {
  ThreeWorkers three;
  WireEnd job(three.wire(0, 2, 77)), stranger(three.wire(2, 3, 77));
  stranger.post(GlobalRank(0), Bytes(5));
  const base::SteadyClock clock;
  const auto end = clock.now() + 30 * base::kSecond;
  const auto listen = [&] {
    while (clock.now() < end) {
      stranger.wire().poll();
      job.wire().poll();
    }
  };
  EXPECT_THAT(listen, testing::ThrowsMessage<PeerLostError>(testing::HasSubstr(
                          "makes no sense (position 2 among 2 ranks, 5 bytes)")));
  EXPECT_TRUE(job.control.empty());
}

}  // namespace ucx_wire_test
}  // namespace smp::d2d
