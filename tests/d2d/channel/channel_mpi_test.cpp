// The channel keeps its contract between processes, over one MPI wire and over two, and what only
// processes can show.
#include "d2d/channel/channel.h"

#include "d2d/channel/channel_contract.h"
#include "d2d/job/shared_mpi_session.h"

namespace smp::d2d {
namespace {

using testing::IsEmpty;

constexpr base::Nanoseconds kDeadline = 60 * base::kSecond;

/// This process's rank among all of the job.
class MpiCluster : public Cluster {
 public:
  explicit MpiCluster(MpiWireOptions options = {})
      : MpiCluster(Routes(shared_mpi_session().connect_all(options))) {}
  explicit MpiCluster(Routes routes) {
    players_.push_back(std::make_unique<Player>(std::move(routes)));
  }
  ~MpiCluster() override { EXPECT_TRUE(channel().close(kDeadline)); }

  Player& self() { return *players_.front(); }
  Channel& channel() { return *self().channel; }
};

struct ChunkedCluster : MpiCluster {
  ChunkedCluster() : MpiCluster({.chunk_bytes = 10'000}) {}
};

Routes separate_mpi_planes() {
  std::vector<WireUse> uses;
  uses.push_back({shared_mpi_session().connect_all(), /*control=*/true, /*data=*/false});
  uses.push_back({shared_mpi_session().connect_all(), /*control=*/false, /*data=*/true});
  return Routes(std::move(uses));
}
struct SeparateMpiPlanesCluster : MpiCluster {
  SeparateMpiPlanesCluster() : MpiCluster(separate_mpi_planes()) {}
};

// Neighbours have a wire for data; the first pair also for control bytes.
Routes mpi_wires_of_pairs() {
  const int first = shared_mpi_session().rank().value() / 2 * 2;
  const Members pair({GlobalRank(first + 1), GlobalRank(first)});
  std::vector<WireUse> uses;
  uses.push_back({shared_mpi_session().connect(pair), /*control=*/first == 0, /*data=*/true});
  uses.push_back({shared_mpi_session().connect_all()});
  return Routes(std::move(uses));
}
struct MpiPairsCluster : MpiCluster {
  MpiPairsCluster() : MpiCluster(mpi_wires_of_pairs()) {}
};

using MpiClusters =
    testing::Types<MpiCluster, ChunkedCluster, SeparateMpiPlanesCluster, MpiPairsCluster>;
INSTANTIATE_TYPED_TEST_SUITE_P(channel_mpi_test, ChannelContract, MpiClusters);
INSTANTIATE_TYPED_TEST_SUITE_P(channel_mpi_test, ChannelTensorsContract, MpiClusters);

template <class ClusterType>
class MpiChannelLeaving : public testing::Test {};
TYPED_TEST_SUITE(MpiChannelLeaving, MpiClusters);

TYPED_TEST(MpiChannelLeaving, LeavesWhenAllLeave) {
  TypeParam cluster;
  Channel& channel = cluster.channel();
  if (channel.rank() == GlobalRank(0)) {
    EXPECT_FALSE(channel.close(20 * base::kMillisecond)) << "the others have not come";
  }
  shared_mpi_session().barrier();
  EXPECT_TRUE(channel.close(kDeadline));
  EXPECT_TRUE(channel.close(0)) << "closed already";
}

// On both planes: while a rank leaves it still takes what others send to it.
TYPED_TEST(MpiChannelLeaving, LetsWhatWasSentBeforeArrive) {
  TypeParam cluster;
  Player& self = cluster.self();
  for (int peer = 0; peer < cluster.size(); ++peer) {
    if (peer == self.rank()) continue;
    for (int i = 0; i < 10; ++i) {
      self.send(peer, Frame{std::string(10'000, 'x'), {at::ones({1 << 18})}});
    }
  }
  EXPECT_TRUE(cluster.channel().close(kDeadline));
  EXPECT_TRUE(cluster.channel().drained());
  EXPECT_THAT(self.arrived, IsEmpty());
  EXPECT_THAT(self.failures, IsEmpty());
}

TYPED_TEST(MpiChannelLeaving, RefusesToSendAfterwards) {
  TypeParam cluster;
  EXPECT_TRUE(cluster.channel().close(kDeadline));
  const int next = (cluster.self().rank() + 1) % cluster.size();
  EXPECT_THROW(cluster.self().send(next, Frame{}), UsageError);
}

}  // namespace
}  // namespace smp::d2d
