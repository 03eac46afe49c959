// The UCX wire keeps the contracts between processes.
#include "d2d/channel/channel_contract.h"
#include "d2d/wire/network_mpi_contract.h"
#include "d2d/wire/wire_contract.h"

namespace smp::d2d {
namespace ucx_mpi_test {

using UcxWires = NetworkMpiWires<&connect_ucx>;
using UcxCluster = NetworkMpiCluster<Network::kUcx>;
INSTANTIATE_TYPED_TEST_SUITE_P(ucx_mpi_test, WireContract, UcxWires);
INSTANTIATE_TYPED_TEST_SUITE_P(ucx_mpi_test, ChannelContract, UcxCluster);
INSTANTIATE_TYPED_TEST_SUITE_P(ucx_mpi_test, ChannelTensorsContract, UcxCluster);

}  // namespace ucx_mpi_test
}  // namespace smp::d2d
