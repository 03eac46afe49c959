// Barrier, broadcast and gather between ranks that share a thread, and how their waits end.
#include "server/collectives.h"

#include <gmock/gmock.h>

#include <memory>

#include "base/sim_clock.h"
#include "smp/error.h"

namespace smp::server {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr base::WaitReason kForTheTest{"the test", "", -1, -1};

// Ranks as fibers; messages arrive at once.
class CollectivesTest : public testing::Test {
 protected:
  CollectivesTest() {
    scheduler_.set_simulation(&clock_);
    for (int rank = 0; rank < 3; ++rank) {
      ranks_.push_back(std::make_unique<Collectives>(rank, [this, rank](int peer, Message&& m) {
        ranks_.at(peer)->deliver(rank, std::move(m));
      }));
    }
  }
  ~CollectivesTest() override { scheduler_.set_simulation(nullptr); }

  // Runs `main` on ranks 0 to `count` - 1 and returns when all are done.
  template <class Main>
  void on_ranks(int count, const Main& main) {
    int left = count;
    base::Event done;
    for (int rank = 0; rank < count; ++rank) {
      scheduler_.spawn(
          [&, rank] {
            main(rank, *ranks_[rank]);
            if (--left == 0) done.signal();
          },
          nullptr, 1 << 20);
    }
    done.wait(kForTheTest);
  }

  static Packet text(const std::string& bytes) { return {bytes, {}}; }

  base::FiberScheduler& scheduler_ = base::FiberScheduler::install();
  base::SimClock clock_{1};
  std::vector<std::unique_ptr<Collectives>> ranks_;
  const std::vector<int> all_{0, 1, 2};
};

TEST_F(CollectivesTest, GatherGivesEveryonesPacketInOrderOfRanks) {
  on_ranks(3, [&](int rank, Collectives& own) {
    for (int round = 0; round < 3; ++round) {
      std::vector<std::string> texts;
      for (auto& packet : own.all_gather(all_, text(std::to_string(10 * round + rank)), "a test")) {
        texts.push_back(packet.bytes);
      }
      const auto expected = [&](int peer) { return std::to_string(10 * round + peer); };
      EXPECT_THAT(texts, ElementsAre(expected(0), expected(1), expected(2)));
    }
  });
}

TEST_F(CollectivesTest, BroadcastGivesTheRootsPacket) {
  on_ranks(3, [&](int rank, Collectives& own) {
    for (int root = 0; root < 3; ++root) {
      const auto packet = own.broadcast(all_, root, text(std::to_string(rank)));
      EXPECT_EQ(packet.bytes, std::to_string(root));
    }
  });
}

TEST_F(CollectivesTest, GroupsDoNotMix) {
  on_ranks(3, [&](int rank, Collectives& own) {
    if (rank < 2) own.broadcast({0, 1}, 0, text("pair"));
    const auto packet = own.broadcast(all_, 0, text(rank == 0 ? "all" : ""));
    EXPECT_EQ(packet.bytes, "all");
  });
}

TEST_F(CollectivesTest, APeerThatLeftEndsTheWait) {
  on_ranks(3, [&](int rank, Collectives& own) {
    if (rank == 2) {
      for (auto& other : ranks_) other->peer_left(2, 0, "it left after step 7");
      return;
    }
    try {
      own.barrier(all_);
      ADD_FAILURE() << "a barrier without rank 2";
    } catch (const PeerLostError& error) {
      EXPECT_THAT(error.what(), HasSubstr("rank 2, but it left after step 7"));
    }
  });
}

TEST_F(CollectivesTest, WhatArrivedBeforeThePeerLeftCounts) {
  on_ranks(3, [&](int rank, Collectives& own) {
    own.barrier(all_);
    if (rank == 2) ranks_[0]->peer_left(2, own.sent_to(0), "it left");
  });
}

TEST_F(CollectivesTest, WhatIsOnItsWayWhenThePeerLeavesIsWaitedFor) {
  Message late;
  late.kind = Kind::kCollective;
  bool caught = false;
  Collectives sender(0, [&](int, Message&& message) { late = std::move(message); });
  Collectives receiver(1, [](int, Message&&) {});
  sender.broadcast({0, 1}, 0, text("late"));
  receiver.peer_left(0, sender.sent_to(1), "it left after step 7");
  on_ranks(2, [&](int rank, Collectives&) {
    if (rank == 0) return receiver.deliver(0, std::move(late));
    EXPECT_EQ(receiver.broadcast({0, 1}, 0, {}).bytes, "late");
    try {
      receiver.broadcast({0, 1}, 0, {});
    } catch (const PeerLostError&) {
      caught = true;
    }
  });
  EXPECT_TRUE(caught) << "a second broadcast, which nobody sent";
}

TEST_F(CollectivesTest, AbortEndsEveryWait) {
  on_ranks(3, [&](int rank, Collectives& own) {
    if (rank == 2) {
      for (auto& other : ranks_) other->abort("nothing happened for 600 s");
      return;
    }
    try {
      own.barrier(all_);
      ADD_FAILURE() << "a barrier without rank 2";
    } catch (const PeerLostError& error) {
      EXPECT_THAT(error.what(), HasSubstr("nothing happened for 600 s"));
    }
  });
}

}  // namespace
}  // namespace smp::server
