// Wires over UCX keep the contract of wires and of channels, here over TCP within this process; and
// a rank that is gone is noticed.
#include "d2d/wires/ucx_wire.h"

#include <cstdlib>

#include "d2d/channel_contract.h"
#include "d2d/network_wire_contract.h"

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

/// It believes that the job has more ranks than it has.
TEST(UcxWireTest, AMessageOfAStrangerIsRefused) {
  const auto wires = Ucx::make_wires(Members::all(2));  // sets what UCX is to use
  std::vector<std::unique_ptr<UcxWorker>> workers;
  std::vector<std::string> addresses;
  for (int i = 0; i < 3; ++i) {
    workers.push_back(std::make_unique<UcxWorker>());
    addresses.push_back(workers.back()->address());
  }
  WireEnd job(std::make_unique<UcxWire>(GlobalRank(0), Members::all(2), std::move(workers[0]),
                                        std::vector(addresses.begin(), addresses.begin() + 2)));
  WireEnd stranger(
      std::make_unique<UcxWire>(GlobalRank(2), Members::all(3), std::move(workers[2]), addresses));
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
