// d2d/wires/host_shm_wire_test.cpp: wires over shared memory keep the contract of wires and of
// channels, also where memory is scarce; here all ranks are in one process.
#include "d2d/wires/shm/host_shm_wire.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <optional>

#include "d2d/channel/channel_contract.h"
#include "d2d/wire/wire_contract.h"
#include "d2d/wires/host_shm_cluster.h"

namespace smp::d2d {
namespace host_shm_wire_test {

Members three_ranks() { return Members({GlobalRank(3), GlobalRank(0), GlobalRank(4)}); }

class HostShmWires : public WireCluster {
 public:
  explicit HostShmWires(const HostShmOptions& options = {}, const Members& members = three_ranks(),
                        Fetches fetches = Fetches::kNothing)
      : edges_(edges_of(options)) {
    for (auto& wire : make_wires(members, options, own_process(members, fetches))) {
      ends_.push_back(std::make_unique<WireEnd>(std::move(wire)));
    }
  }
  std::vector<std::size_t> edges() const override { return edges_; }

 private:
  std::vector<std::size_t> edges_;
};
struct ScarceHostShmWires : HostShmWires {
  ScarceHostShmWires() : HostShmWires(kScarce) {}
};

struct FetchingHostShmWires : HostShmWires {
  FetchingHostShmWires() : HostShmWires({}, three_ranks(), Fetches::kLarge) {}
};
struct ScarceFetchingHostShmWires : HostShmWires {
  ScarceFetchingHostShmWires() : HostShmWires(kScarce, three_ranks(), Fetches::kLarge) {}
};

using AllHostShmWires = testing::Types<HostShmWires, ScarceHostShmWires, FetchingHostShmWires,
                                       ScarceFetchingHostShmWires>;
INSTANTIATE_TYPED_TEST_SUITE_P(host_shm_wire_test, WireContract, AllHostShmWires);

struct ScarceHostShmCluster : HostShmCluster {
  ScarceHostShmCluster() : HostShmCluster(kScarce) {}
};

struct FetchingHostShmCluster : HostShmCluster {
  FetchingHostShmCluster() : HostShmCluster({.least_fetched = 1}, Fetches::kLarge) {}
};

using HostShmClusters =
    testing::Types<HostShmCluster, ScarceHostShmCluster, FetchingHostShmCluster>;
INSTANTIATE_TYPED_TEST_SUITE_P(host_shm_channel_test, ChannelContract, HostShmClusters);
INSTANTIATE_TYPED_TEST_SUITE_P(host_shm_channel_test, ChannelTensorsContract, HostShmClusters);

// ---- what only this wire promises --------------------------------------------------------------

class HostShmPair : public testing::Test {
 protected:
  void connect(const HostShmOptions& options, Fetches fetches = Fetches::kNothing) {
    cluster_.emplace(options, Members({GlobalRank(0), GlobalRank(1)}), fetches);
  }
  WireEnd& end(int rank) { return *cluster_->ends()[static_cast<std::size_t>(rank)]; }
  std::optional<HostShmWires> cluster_;
};

TEST_F(HostShmPair, WhatIsSentMayBeChangedAsSoonAsItHasLeft) {
  connect({});
  Bytes bytes = random_bytes(300'000, 1);
  const Bytes original = bytes;
  end(0).wire().send(bytes, GlobalRank(1), 1, 5);
  end(0).wire().complete();
  EXPECT_THAT(end(0).sent, testing::ElementsAre(5)) << "there are blocks for all of it";
  std::fill(bytes.begin(), bytes.end(), std::byte{0});
  Bytes place(bytes.size());
  end(1).wire().receive(place, GlobalRank(0), 1, 6);
  end(1).wire().poll();
  EXPECT_THAT(end(1).received, testing::ElementsAre(6));
  EXPECT_EQ(place, original);
}

/// What nobody receives takes all blocks; control bytes come through, and tell where it goes.
TEST_F(HostShmPair, ControlBytesNeedNoBlocks) {
  connect(kScarce);
  const Bytes bytes = random_bytes(100'000, 2);
  end(0).wire().send(bytes, GlobalRank(1), 1, 1);
  end(0).post(GlobalRank(1), Bytes(5));
  for (int i = 0; i < 10; ++i) {
    end(0).wire().poll();
    end(1).wire().poll();
  }
  EXPECT_EQ(end(1).control[0].size(), 1u);
  EXPECT_FALSE(end(0).wire().drained());
  Bytes place(bytes.size());
  end(1).wire().receive(place, GlobalRank(0), 1, 1);
  cluster_->run_until([&](WireEnd& each) { return each.rank() == 0 || each.received.size() == 1; });
  EXPECT_EQ(place, bytes);
}

TEST_F(HostShmPair, BlocksComeBackInAnyOrder) {
  connect({.ring_lines = 64, .block_bytes = 4096, .blocks = 4});
  std::array<Bytes, 4> places;
  for (std::size_t round = 0; round < 100; ++round) {
    for (std::size_t i = 0; i < 4; ++i) {
      end(0).wire().send(random_bytes(4000, round * 4 + i), GlobalRank(1), round * 4 + i, 0);
    }
    EXPECT_TRUE(end(0).wire().complete());
    for (const std::size_t i : {2u, 0u, 3u, 1u}) {
      places[i].resize(4000);
      end(1).wire().receive(places[i], GlobalRank(0), round * 4 + i, 0);
      end(1).wire().poll();
    }
    for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(places[i], random_bytes(4000, round * 4 + i));
  }
  EXPECT_EQ(end(0).sent.size(), 400u);
  EXPECT_EQ(end(1).received.size(), 400u);
}

TEST_F(HostShmPair, WhatIsFetchedHasLeftWhenItWasFetched) {
  connect({}, Fetches::kLarge);
  const Bytes bytes = random_bytes(100'000, 3);
  Bytes place(bytes.size());
  end(0).wire().send(bytes, GlobalRank(1), 1, 5);
  end(0).wire().poll();
  end(1).wire().poll();
  EXPECT_THAT(end(0).sent, testing::IsEmpty()) << "nobody receives it yet";
  end(1).wire().receive(place, GlobalRank(0), 1, 6);
  end(1).wire().poll();
  EXPECT_THAT(end(1).received, testing::ElementsAre(6));
  EXPECT_EQ(place, bytes);
  end(0).wire().poll();
  EXPECT_THAT(end(0).sent, testing::ElementsAre(5));
  EXPECT_TRUE(end(0).wire().drained());
}

/// Whether somebody rings for `sleeper` while `act` runs.
bool rings(WireEnd& sleeper, const std::function<void()>& act) {
  auto& doorbell = *sleeper.wire().doorbell();
  doorbell.arm();
  act();
  return doorbell.wait(1);
}

TEST_F(HostShmPair, WakesWhoeverItHasSomethingFor) {
  for (const auto fetches : {Fetches::kNothing, Fetches::kLarge}) {
    connect({}, fetches);
    const Bytes bytes = random_bytes(100'000, 4);
    Bytes place(bytes.size());
    EXPECT_TRUE(rings(end(1), [&] { end(0).post(GlobalRank(1), Bytes(5)); }));
    EXPECT_FALSE(rings(end(0), [&] { end(0).post(GlobalRank(1), Bytes(5)); })) << "the sender";
    EXPECT_TRUE(rings(end(1), [&] { end(0).wire().send(bytes, GlobalRank(1), 1, 1); }));
    EXPECT_TRUE(rings(end(0), [&] {
      end(1).wire().receive(place, GlobalRank(0), 1, 1);
      end(1).wire().poll();
    })) << "may go on with blocks that came back, or learns that all has left";
    EXPECT_FALSE(rings(end(1), [] {}));
  }
}

TEST_F(HostShmPair, WakesForWhatHadToWaitForRoom) {
  connect(kScarce);
  for (int i = 0; i < 100; ++i) end(0).post(GlobalRank(1), Bytes(200));
  end(1).wire().poll();
  EXPECT_TRUE(rings(end(1), [&] { end(0).wire().poll(); }));
}

TEST_F(HostShmPair, ReceivingAnotherSizeThanWasSentIsAnError) {
  connect({});
  const Bytes bytes(1000);
  Bytes place(900);
  end(0).wire().send(bytes, GlobalRank(1), 1, 1);
  end(1).wire().poll();
  EXPECT_THROW(end(1).wire().receive(place, GlobalRank(0), 1, 1), InternalError);
}

TEST_F(HostShmPair, LeavesWhenAllHaveLeftAndAllIsRead) {
  connect({});
  EXPECT_FALSE(end(1).wire().leave()) << "rank 0 has not come";
  end(0).post(GlobalRank(1), Bytes(5));
  EXPECT_TRUE(end(0).wire().leave());
  EXPECT_FALSE(end(1).wire().leave()) << "something is left to read";
  end(1).wire().poll();
  EXPECT_TRUE(end(1).wire().leave());
  EXPECT_EQ(end(1).control[0].size(), 1u);
}

TEST_F(HostShmPair, DoesNotLeaveBeforeItsSendsHaveLeft) {
  connect(kScarce);
  const Bytes bytes(100'000);
  end(0).wire().send(bytes, GlobalRank(1), 1, 1);
  EXPECT_FALSE(end(0).wire().leave());
  EXPECT_FALSE(end(1).wire().leave()) << "rank 0 has not come";
}

// ---- receivers of different patience ----------------------------------------------------------

/// One that computes and takes nothing holds up nobody else.
TEST(HostShmWireTest, ADeafReceiverDoesNotGetAllBlocks) {
  const Members all = Members::all(4);
  std::vector<std::unique_ptr<WireEnd>> ends;
  for (auto& wire : make_wires(all, {.blocks = 6}, own_process(all, Fetches::kNothing))) {
    ends.push_back(std::make_unique<WireEnd>(std::move(wire)));
  }
  const Bytes large(std::size_t{1} << 20, std::byte(1)), other(std::size_t{1} << 20, std::byte(2));
  for (const int deaf : {1, 3}) ends[0]->wire().send(large, GlobalRank(deaf), 1, 10);
  Bytes place(other.size());
  ends[2]->wire().receive(place, GlobalRank(0), 2, 20);
  ends[0]->wire().send(other, GlobalRank(2), 2, 30);
  for (int i = 0; i < 1000 && ends[2]->received.empty(); ++i) {
    ends[0]->wire().poll();
    ends[2]->wire().poll();
  }
  EXPECT_EQ(place, other);
  EXPECT_EQ(ends[0]->sent, std::vector<Token>{30});
  for (const int deaf : {1, 3}) {
    Bytes late(large.size());
    ends[static_cast<std::size_t>(deaf)]->wire().receive(late, GlobalRank(0), 1, 40);
    for (int i = 0; i < 1000 && ends[static_cast<std::size_t>(deaf)]->received.empty(); ++i) {
      ends[0]->wire().poll();
      ends[static_cast<std::size_t>(deaf)]->wire().poll();
    }
    EXPECT_EQ(late, large);
  }
  ends[0]->wire().poll();
  EXPECT_TRUE(ends[0]->wire().drained());
}

// ---- a process that ends -----------------------------------------------------------------------

/// Rank 0 is here; of rank 1 the wire is here too, but it is said to be another process.
class HostShmLoss : public testing::Test {
 protected:
  HostShmLoss() : process_(fork()) {
    if (process_ == 0) {
      for (;;) pause();
    }
    connect({});
  }
  ~HostShmLoss() override {
    ::kill(process_, SIGKILL);
    waitpid(process_, nullptr, 0);
  }
  void connect(const HostShmOptions& options) {
    ends_.clear();
    for (auto& wire : make_wires(Members::all(2), options, {{::getpid(), process_}, false})) {
      ends_.push_back(std::make_unique<WireEnd>(std::move(wire)));
    }
  }
  WireEnd& end(int rank) { return *ends_[static_cast<std::size_t>(rank)]; }

  /// Until the wire of rank 0 knows it.
  void kill() {
    auto& doorbell = *end(0).wire().doorbell();
    doorbell.arm();
    ::kill(process_, SIGKILL);
    bool rang = false;
    for (int tries = 0; tries < 20 && !rang; ++tries) rang = doorbell.wait(base::kSecond - 1);
    ASSERT_TRUE(rang) << "nobody rang for rank 0";
  }
  std::string loss() {
    try {
      end(0).wire().poll();
    } catch (const PeerLostError& error) {
      return error.what();
    }
    return "";
  }

  const pid_t process_;
  std::vector<std::unique_ptr<WireEnd>> ends_;
};

TEST_F(HostShmLoss, IsSaidOnceAllThatCameIsRead) {
  EXPECT_EQ(loss(), "");
  end(1).post(GlobalRank(0), Bytes(5));
  kill();
  EXPECT_EQ(loss(), "") << "it may have said why it ends";
  EXPECT_EQ(end(0).control[1].size(), 1u);
  EXPECT_EQ(loss(), base::concat("rank 0: rank 1 is gone: its process ", process_,
                                 " has ended; restart from a checkpoint"));
  EXPECT_EQ(end(1).wire().poll(), false) << "to itself nothing has happened";
}

/// From the signal until poll() throws, in who sleeps meanwhile; the best of several, since a busy
/// machine gives a thread its core late.
TEST(HostShmLossTime, IsAtMostFiftyMilliseconds) {
  constexpr int kTries = 5;
  constexpr base::Nanoseconds kMost = 50 * base::kSecond / 1000;
  auto best = base::kSecond;
  for (int i = 0; i < kTries && best > kMost; ++i) {
    const auto child = fork();
    if (child == 0) {
      for (;;) pause();
    }
    auto wires = make_wires(Members::all(2), {}, {{::getpid(), child}, false});
    auto& wire = *wires[0];
    auto& doorbell = *wire.doorbell();
    EXPECT_FALSE(wire.poll());
    doorbell.arm();
    const base::SteadyClock clock;
    const auto start = clock.now();
    ::kill(child, SIGKILL);
    EXPECT_TRUE(doorbell.wait(base::kSecond - 1));
    EXPECT_THROW(wire.poll(), PeerLostError);
    best = std::min(best, clock.now() - start);
    waitpid(child, nullptr, 0);
  }
  EXPECT_LE(best, kMost);
}

TEST_F(HostShmLoss, IsNoneOfWhoHasLeft) {
  end(1).wire().leave();
  kill();
  EXPECT_EQ(loss(), "");
  EXPECT_TRUE(end(0).wire().leave());
}

TEST_F(HostShmLoss, IsLeftToTheLauncherForAWhileByWhoLeaves) {
  EXPECT_FALSE(end(0).wire().leave());
  kill();
  EXPECT_FALSE(end(0).wire().leave());
  EXPECT_EQ(loss(), "") << "the job ends anyway";
}

TEST_F(HostShmLoss, IsSaidByWhoLeavesIfNobodyEndsTheJob) {
  connect({.launcher_patience = 0});
  EXPECT_FALSE(end(0).wire().leave());
  kill();
  EXPECT_THAT([&] { end(0).wire().leave(); }, testing::ThrowsMessage<PeerLostError>(base::concat(
                                                  "rank 0: rank 1 is gone: its process ", process_,
                                                  " has ended; restart from a checkpoint")));
}

}  // namespace host_shm_wire_test
}  // namespace smp::d2d
