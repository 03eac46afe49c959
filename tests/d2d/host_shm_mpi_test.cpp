// The shared memory wire keeps the contracts between processes, beside MPI.
#include <algorithm>

#include "d2d/channel_contract.h"
#include "d2d/shared_mpi_session.h"
#include "d2d/wire_contract.h"

namespace smp::d2d {
namespace host_shm_mpi_test {

constexpr base::Nanoseconds kDeadline = 60 * base::kSecond;

class HostShmWires : public WireCluster {
 public:
  HostShmWires() {
    ends_.push_back(std::make_unique<WireEnd>(shared_mpi_session().connect_host_shm()));
  }
  ~HostShmWires() override { EXPECT_TRUE(ends_.front()->wire().close(kDeadline)); }
};
INSTANTIATE_TYPED_TEST_SUITE_P(host_shm_mpi_test, WireContract, HostShmWires);

/// What a job uses.
class AutoCluster : public Cluster {
 public:
  AutoCluster() {
    players_.push_back(std::make_unique<Player>(shared_mpi_session().fastest_routes()));
  }
  ~AutoCluster() override { EXPECT_TRUE(channel().close(kDeadline)); }
  Channel& channel() { return *players_.front()->channel; }
};
INSTANTIATE_TYPED_TEST_SUITE_P(host_shm_mpi_test, ChannelContract, AutoCluster);
INSTANTIATE_TYPED_TEST_SUITE_P(host_shm_mpi_test, ChannelTensorsContract, AutoCluster);

TEST(FastestRoutes, AreSharedMemoryOnOneMachine) {
  AutoCluster cluster;
  const auto& routes = cluster.channel().routes();
  for (const GlobalRank peer : routes.members()) {
    if (peer == routes.rank()) continue;
    EXPECT_STREQ(routes.control(peer).name(), "host_shm");
    EXPECT_EQ(routes.data(peer, MemoryKind::kHost), 0);
  }
}

}  // namespace host_shm_mpi_test
}  // namespace smp::d2d
