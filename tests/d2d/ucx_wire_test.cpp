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

}  // namespace ucx_wire_test
}  // namespace smp::d2d
