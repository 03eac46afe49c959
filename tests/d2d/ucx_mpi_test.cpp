// The UCX wire keeps the contracts between processes.
#include "d2d/channel_contract.h"
#include "d2d/shared_mpi_session.h"
#include "d2d/wire_contract.h"

namespace smp::d2d {
namespace ucx_mpi_test {

constexpr base::Nanoseconds kDeadline = 60 * base::kSecond;

class UcxWires : public WireCluster {
 public:
  UcxWires() { ends_.push_back(std::make_unique<WireEnd>(shared_mpi_session().connect_ucx())); }
  ~UcxWires() override { EXPECT_TRUE(ends_.front()->wire().close(kDeadline)); }
};
INSTANTIATE_TYPED_TEST_SUITE_P(ucx_mpi_test, WireContract, UcxWires);

/// As between machines.
class UcxCluster : public Cluster {
 public:
  UcxCluster() {
    players_.push_back(std::make_unique<Player>(
        shared_mpi_session().fastest_routes({.shared_memory = false, .ucx = true})));
  }
  ~UcxCluster() override { EXPECT_TRUE(players_.front()->channel->close(kDeadline)); }
};
INSTANTIATE_TYPED_TEST_SUITE_P(ucx_mpi_test, ChannelContract, UcxCluster);
INSTANTIATE_TYPED_TEST_SUITE_P(ucx_mpi_test, ChannelTensorsContract, UcxCluster);

}  // namespace ucx_mpi_test
}  // namespace smp::d2d
