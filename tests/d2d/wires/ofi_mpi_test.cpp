// The libfabric wire keeps the contracts between processes.
#include "d2d/channel/channel_contract.h"
#include "d2d/wire/network_mpi_contract.h"
#include "d2d/wire/wire_contract.h"
#include "d2d/wires/ofi/ofi_wire.h"

namespace smp::d2d {
namespace ofi_mpi_test {

struct OfiWires : NetworkMpiWires<&connect_ofi> {
  std::vector<std::size_t> edges() const override {
    const OfiWireOptions options;
    return {options.frame_bytes - sizeof(OfiTrailer), options.segment_bytes};
  }
};
using OfiCluster = NetworkMpiCluster<Network::kOfi>;
INSTANTIATE_TYPED_TEST_SUITE_P(ofi_mpi_test, WireContract, OfiWires);
INSTANTIATE_TYPED_TEST_SUITE_P(ofi_mpi_test, ChannelContract, OfiCluster);
INSTANTIATE_TYPED_TEST_SUITE_P(ofi_mpi_test, ChannelTensorsContract, OfiCluster);

}  // namespace ofi_mpi_test
}  // namespace smp::d2d
