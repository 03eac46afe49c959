// The local transport keeps the contract with and without simulated time, and replays its runs.
#include "d2d/local_transport.h"

#include "d2d/transport_contract.h"

namespace smp::d2d {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

/// All ranks, with or without a clock.
class LocalCluster : public Cluster {
 public:
  explicit LocalCluster(LocalOptions options, int ranks = 4)
      : hub_(std::make_shared<LocalHub>(ranks, options)), clock_(options.clock) {
    for (int rank = 0; rank < ranks; ++rank) {
      players_.push_back(std::make_unique<Player>(std::make_unique<LocalTransport>(hub_, rank)));
    }
  }
  LocalHub& hub() { return *hub_; }
  Player& player(int rank) { return *players_[rank]; }

 protected:
  void advance() override {
    if (clock_ != nullptr) clock_->advance();
    Cluster::advance();
  }

 private:
  std::shared_ptr<LocalHub> hub_;
  base::SimClock* clock_;
};

struct PlainCluster : LocalCluster {
  PlainCluster() : LocalCluster({}) {}
};

struct ClockHolder {
  base::SimClock clock{42};
};
struct SimulatedCluster : ClockHolder, LocalCluster {
  SimulatedCluster() : LocalCluster({.clock = &clock}) {}
};

using Clusters = testing::Types<PlainCluster, SimulatedCluster>;
INSTANTIATE_TYPED_TEST_SUITE_P(local_transport_test, TransportContract, Clusters);

// Random traffic between 3 ranks in simulated time; the hash of its trace.
std::uint64_t traced_run(std::uint64_t seed, const std::string& header = "h") {
  base::SimClock clock(seed);
  LocalCluster cluster({.clock = &clock}, 3);
  for (int i = 0; i < 20; ++i) {
    cluster.player(i % 3).transport->send((i + 1) % 3, Frame{header, {at::ones({i * 100})}});
  }
  cluster.run_until([](Player&) { return true; });
  return clock.trace_hash();
}

std::vector<std::string> headers_in_order(LocalCluster& cluster, int rank) {
  std::vector<std::string> headers;
  for (auto& mail : cluster.player(rank).arrived) headers.push_back(mail.frame.header);
  return headers;
}

TEST(LocalTransport, ReplaysARunFromItsSeed) {
  EXPECT_EQ(traced_run(1), traced_run(1));
  EXPECT_NE(traced_run(1), traced_run(2));
  EXPECT_NE(traced_run(1), traced_run(1, "another header"));
}

TEST(LocalTransport, DeliversAtTheSimulatedTimeOfArrival) {
  base::SimClock clock(1);
  LocalCluster cluster({.clock = &clock, .fixed_delay = 500}, 2);
  cluster.player(0).transport->send(1, Frame{"a", {}});
  cluster.player(1).transport->poll();
  EXPECT_THAT(cluster.player(1).arrived, IsEmpty());
  EXPECT_FALSE(cluster.player(0).transport->drained());
  EXPECT_TRUE(clock.advance());
  EXPECT_EQ(clock.now(), 500);
  EXPECT_EQ(cluster.player(1).arrived.size(), 1u);
  EXPECT_TRUE(cluster.player(0).transport->drained());
}

TEST(LocalTransport, LetsSmallFramesOvertakeLargeOnes) {
  int overtaken = 0;
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    base::SimClock clock(seed);
    LocalCluster cluster({.clock = &clock, .inline_bytes = 0}, 2);
    cluster.player(0).transport->send(1, Frame{"tensor", {at::ones({1})}});
    cluster.player(0).transport->send(1, Frame{"header", {}});
    cluster.run_until(
        [](Player& player) { return player.rank() == 0 || player.arrived.size() == 2; });
    overtaken += headers_in_order(cluster, 1).front() == "header";
  }
  EXPECT_GT(overtaken, 0);
  EXPECT_LT(overtaken, 50);
}

TEST(LocalTransport, LosesTheFrameItIsToldTo) {
  LocalCluster cluster({}, 2);
  cluster.hub().lose_frame(1);
  for (const char* header : {"0", "1", "2"}) {
    cluster.player(0).transport->send(1, Frame{header, {}});
  }
  cluster.run_until(
      [](Player& player) { return player.rank() == 0 || player.arrived.size() == 2; });
  EXPECT_THAT(headers_in_order(cluster, 1), ElementsAre("0", "2"));
  EXPECT_EQ(cluster.player(0).transport->counters().frames_sent, 3u);
}

TEST(LocalTransport, CopiesWhenItSends) {
  LocalCluster cluster({}, 2);
  at::Tensor tensor = at::zeros({4});
  cluster.player(0).transport->send(1, Frame{"", {tensor}});
  tensor.fill_(1);
  cluster.player(1).transport->poll();
  EXPECT_EQ(cluster.player(1).arrived.front().frame.tensors[0].sum().item<float>(), 0);
}

TEST(LocalTransport, MayEndBeforeItsFramesArrive) {
  base::SimClock clock(1);
  {
    LocalCluster cluster({.clock = &clock}, 2);
    cluster.player(0).transport->send(1, Frame{"nobody is there any more", {}});
  }
  while (clock.advance()) {
  }
}

TEST(LocalTransport, RefusesRanksThatAreTakenOrDoNotExist) {
  auto hub = std::make_shared<LocalHub>(2);
  const LocalTransport first(hub, 0);
  EXPECT_THROW(LocalTransport(hub, 0), UsageError);
  EXPECT_THROW(LocalTransport(hub, 2), UsageError);
  EXPECT_THROW(LocalHub(0), UsageError);
}

}  // namespace
}  // namespace smp::d2d
