// The shared memory wire keeps the contracts between processes, beside MPI.
#include <unistd.h>

#include <algorithm>
#include <span>
#include <sstream>

#include "base/memory/cross_memory.h"
#include "d2d/channel/channel_contract.h"
#include "d2d/channel/loans_contract.h"
#include "d2d/job/job_wires.h"
#include "d2d/job/machine_wires.h"
#include "d2d/job/shared_mpi_session.h"
#include "d2d/wire/wire_contract.h"
#include "d2d/wires/host_shm_cluster.h"
#include "d2d/wires/shm/host_shm_wire.h"

namespace smp::d2d {
namespace host_shm_mpi_test {

constexpr base::Nanoseconds kDeadline = 60 * base::kSecond;

class HostShmWires : public WireCluster {
 public:
  HostShmWires() {
    ends_.push_back(std::make_unique<WireEnd>(connect_host_shm(shared_mpi_session())));
  }
  ~HostShmWires() override { EXPECT_TRUE(ends_.front()->wire().close(kDeadline)); }
  std::vector<std::size_t> edges() const override { return edges_of({}); }
};
INSTANTIATE_TYPED_TEST_SUITE_P(host_shm_mpi_test, WireContract, HostShmWires);

/// Where ranks may read each other's memory, what is large stays where it is until the receiver has
/// it.
TEST(HostShm, LeavesLargeDataWhereItLies) {
  static const int sample = 7;
  const auto& session = shared_mpi_session();
  std::istringstream of_first(session.all_gather(
      base::concat(::getpid(), ' ', reinterpret_cast<std::uint64_t>(&sample)))[0]);
  std::int64_t process = 0;
  std::uint64_t address = 0;
  of_first >> process >> address;
  int read = 0;
  const bool may =
      base::read_process_memory(process, address, std::as_writable_bytes(std::span(&read, 1))) &&
      read == sample;
  HostShmWires wires;
  auto& end = *wires.ends().front();
  const Bytes bytes = random_bytes(1 << 20, 3);
  Bytes place(bytes.size());
  if (end.rank() == 0) {
    end.wire().send(bytes, GlobalRank(1), 1, 1);
    for (int i = 0; i < 100; ++i) end.wire().poll();
    EXPECT_EQ(end.sent.empty(), may);
  }
  session.barrier();
  if (end.rank() == 1) end.wire().receive(place, GlobalRank(0), 1, 1);
  wires.run_until([](WireEnd& each) { return each.rank() != 1 || each.received.size() == 1; });
  if (end.rank() == 1) {
    EXPECT_EQ(place, bytes);
  }
}

/// What a job uses.
class AutoCluster : public Cluster {
 public:
  explicit AutoCluster(bool lend = false) {
    players_.push_back(
        std::make_unique<Player>(fastest_routes(shared_mpi_session(), {.lend = lend})));
  }
  ~AutoCluster() override { EXPECT_TRUE(channel().close(kDeadline)); }
  Channel& channel() { return *players_.front()->channel; }
};
struct LendingAutoCluster : AutoCluster {
  LendingAutoCluster() : AutoCluster(/*lend=*/true) {}
};
using AutoClusters = testing::Types<AutoCluster, LendingAutoCluster>;
INSTANTIATE_TYPED_TEST_SUITE_P(host_shm_mpi_test, ChannelContract, AutoClusters);
INSTANTIATE_TYPED_TEST_SUITE_P(host_shm_mpi_test, ChannelTensorsContract, AutoCluster);
INSTANTIATE_TYPED_TEST_SUITE_P(host_shm_mpi_test, LoansContract, LendingAutoCluster);

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
