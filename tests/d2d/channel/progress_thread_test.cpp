// The second thread of a rank: channels keep their contract beside it, tensors arrive while nobody
// polls, and whoever is told something is told on the rank's thread.
#include "d2d/channel/progress_thread.h"

#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>
#include <thread>

#include "d2d/channel/channel_contract.h"
#include "d2d/wires/host_shm_cluster.h"
#include "support/refusal.h"

namespace smp::d2d {
namespace progress_thread_test {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

struct ProgressCluster : HostShmCluster {
  explicit ProgressCluster(const HostShmOptions& options = {}, Fetches fetches = Fetches::kNothing)
      : HostShmCluster(options, fetches) {
    for (auto& player : players_) player->channel->move_beside_rank();
  }
};
struct ScarceProgressCluster : ProgressCluster {
  ScarceProgressCluster() : ProgressCluster(kScarce) {}
};
struct FetchingProgressCluster : ProgressCluster {
  FetchingProgressCluster() : ProgressCluster({.least_fetched = 1}, Fetches::kLarge) {}
};

#if defined(__SANITIZE_THREAD__)  // ten times as slow
using ProgressClusters = testing::Types<ScarceProgressCluster>;
#else
using ProgressClusters =
    testing::Types<ProgressCluster, ScarceProgressCluster, FetchingProgressCluster>;
#endif
INSTANTIATE_TYPED_TEST_SUITE_P(progress_thread_test, ChannelContract, ProgressClusters);
INSTANTIATE_TYPED_TEST_SUITE_P(progress_thread_test, ChannelTensorsContract, ProgressClusters);

bool becomes_true(const std::function<bool()>& condition) {
  const base::SteadyClock clock;
  const auto end = clock.now() + 20 * base::kSecond;
  while (!condition()) {
    if (clock.now() > end) return false;
    std::this_thread::yield();
  }
  return true;
}

// ---- a channel whose rank computes -------------------------------------------------------------

/// Blocks are few and small, so the sender is done when the receiver has taken nearly all of it.
class RankThatComputes : public testing::Test {
 protected:
  Player& sender() { return *cluster_.players()[0]; }
  Player& receiver() { return *cluster_.players()[1]; }
  bool sender_drains() {
    return becomes_true([this] {
      sender().channel->poll();
      return sender().channel->drained();
    });
  }
  HostShmCluster cluster_{kScarce};
};

TEST_F(RankThatComputes, GetsTensorsBesideIt) {
  receiver().channel->move_beside_rank();
  const auto large = at::rand({1 << 20});
  sender().send(1, {"large", {large}});
  EXPECT_TRUE(sender_drains()) << "the receiver does not poll";
  EXPECT_THAT(receiver().arrived, IsEmpty()) << "nobody has polled there";
  EXPECT_TRUE(becomes_true([this] { return receiver().channel->poll(); }));
  ASSERT_EQ(receiver().arrived.size(), 1u);
  EXPECT_TRUE(receiver().arrived[0].frame.tensors[0].equal(large));
}

TEST_F(RankThatComputes, GetsNothingBesideItWithoutTheThread) {
  sender().send(1, {"large", {at::rand({1 << 20})}});
  const base::SteadyClock clock;
  for (const auto end = clock.now() + 50 * base::kMillisecond; clock.now() < end;) {
    sender().channel->poll();
  }
  EXPECT_FALSE(sender().channel->drained());
  cluster_.run_until_arrived(0);
}

TEST_F(RankThatComputes, SendsBesideIt) {
  sender().channel->move_beside_rank();
  sender().send(1, {"large", {at::rand({1 << 20})}});
  EXPECT_TRUE(becomes_true([this] {
    receiver().channel->poll();
    return receiver().arrived.size() == 1;
  })) << "the sender does not poll";
}

/// Who waits for it is a fiber of the rank's thread.
TEST_F(RankThatComputes, IsToldOfADepartureWhenItPolls) {
  sender().channel->move_beside_rank();
  auto departure = std::make_shared<Departure>();
  sender().channel->send(GlobalRank(1), Port::kServer, {}, "", {at::rand({1 << 20})}, departure);
  EXPECT_TRUE(becomes_true([this] {
    receiver().channel->poll();
    return sender().channel->drained();
  }));
  EXPECT_EQ(departure->in_flight, 1u);
  sender().channel->poll();
  EXPECT_EQ(departure->in_flight, 0u);
}

TEST_F(RankThatComputes, IsToldOfATensorThatChangedWhenItPolls) {
  sender().channel->move_beside_rank();
  auto tensor = at::rand({1 << 20});
  sender().send(1, {"large", {tensor}}, Port::kCollectives);  // the server's may change
  tensor.add_(1);
  EXPECT_TRUE(becomes_true([this] {
    receiver().channel->poll();
    return sender().channel->drained();
  }));
  EXPECT_THAT(sender().failures, IsEmpty());
  sender().channel->poll();
  EXPECT_THAT(sender().failures, ElementsAre(HasSubstr("was changed in place while")));
}

// ---- a wire that says who calls it -------------------------------------------------------------

/// Breaks when it is polled on another thread than the one that made it.
class BrittleWire final : public Wire {
 public:
  explicit BrittleWire(bool takes_other_threads = true)
      : Wire(GlobalRank(0), Members::all(2)), takes_other_threads_(takes_other_threads) {}
  const char* name() const noexcept override { return "brittle"; }
  bool takes_other_threads() const noexcept override { return takes_other_threads_; }
  BufferPool& buffers() noexcept override { return buffers_; }
  void post(GlobalRank, ByteBuffer&&) override {}
  void send(std::span<const std::byte>, GlobalRank, TransferId, Token) override {}
  void receive(std::span<std::byte>, GlobalRank, TransferId, Token) override {}
  bool complete() override { return false; }
  bool poll() override {
    if (std::this_thread::get_id() == maker_) return false;
    ++polled_elsewhere;
    throw PeerLostError("rank 1 is gone");
  }
  bool drained() const noexcept override { return true; }
  bool leave() override { return true; }

  static inline std::atomic<int> polled_elsewhere{0};

 private:
  std::thread::id maker_ = std::this_thread::get_id();
  bool takes_other_threads_;
  BufferPool buffers_;
};

TEST(ChannelBesideAThread, TellsOfALossWhenItIsPolledAndOnce) {
  BrittleWire::polled_elsewhere = 0;
  Player player(Routes(std::make_unique<BrittleWire>()));
  player.channel->move_beside_rank();
  EXPECT_TRUE(becomes_true([] { return BrittleWire::polled_elsewhere > 0; }));
  EXPECT_TRUE(becomes_true([&] {
    player.channel->poll();
    return !player.channel->end().empty();
  }));
  EXPECT_THAT(player.failures, ElementsAre("rank 1 is gone"));
  EXPECT_EQ(BrittleWire::polled_elsewhere, 1) << "a wire that is broken is left alone";
  EXPECT_FALSE(player.channel->poll());
}

TEST(ChannelBesideAThread, RefusesAWireThatIsBoundToOneThread) {
  Player player(Routes(std::make_unique<BrittleWire>(/*takes_other_threads=*/false)));
  EXPECT_STREQ(player.channel->routes().wires().bound_to_one_thread()->name(), "brittle");
  EXPECT_EQ(refusal([&] { player.channel->move_beside_rank(); }),
            "rank 0: a progress thread beside the wire brittle, which only the thread of the rank "
            "may call; use other wires.");
}

// ---- the thread --------------------------------------------------------------------------------

using Motion = ProgressThread::Motion;

TEST(ProgressThread, LooksWhileItsOwnerDoesNot) {
  std::atomic<int> looks{0};
  ProgressThread thread([&looks] { return ++looks, Motion::kNone; });
  EXPECT_TRUE(becomes_true([&] { return looks > 10; }));
}

/// A busy machine may take the owner from its core, and then the thread looks; but hardly ever
/// right after the owner was seen.
TEST(ProgressThread, LeavesAnOwnerAloneWhoMoves) {
  const base::SteadyClock clock;
  std::atomic<base::Nanoseconds> owner_seen{clock.now()};
  std::atomic<int> looks{0}, needless{0};
  ProgressThread thread([&] {
    ++looks;
    if (clock.now() - owner_seen < 20 * base::kMicrosecond) ++needless;
    return Motion::kAwaited;
  });
  for (const auto end = clock.now() + 300 * base::kMillisecond; clock.now() < end;) {
    thread.note_owner_moved();
    owner_seen = clock.now();
    while (clock.now() < owner_seen + 10 * base::kMicrosecond) {
    }
  }
  EXPECT_LE(needless, 20 + looks / 4) << looks << " looks";
}

/// While something moves it would look on and on, and an owner who needs the same lock could wait
/// for long.
TEST(ProgressThread, GivesWayToAnOwnerWhoWaits) {
  std::atomic<int> looks{0};
  ProgressThread thread([&looks] { return ++looks, Motion::kSome; });
  ASSERT_TRUE(becomes_true([&] { return looks > 1000; }));
  thread.set_owner_waits(true);
  const int before = looks;
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_LE(looks - before, 2) << "one may have begun";
  thread.set_owner_waits(false);
  EXPECT_TRUE(becomes_true([&] { return looks > before + 1000; }));
}

TEST(ProgressThread, TakesNoSignals) {
  std::atomic<bool> blocked{false}, looked{false};
  ProgressThread thread([&] {
    sigset_t mask;
    pthread_sigmask(SIG_SETMASK, nullptr, &mask);
    blocked = sigismember(&mask, SIGTERM) == 1;
    looked = true;
    return Motion::kNone;
  });
  EXPECT_TRUE(becomes_true([&] { return looked.load(); }));
  EXPECT_TRUE(blocked);
}

/// Libraries go away while exit() runs, and no destructor of a session on main's stack does.
TEST(ProgressThreadDeathTest, LooksNoMoreOnceTheProcessEnds) {
  const auto ends = [] {
    static std::atomic<int> looks{0};
    static std::atomic<bool> looking{false};
    std::atexit([] {  // runs after the handler of the thread that is made next
      const int before = looks;
      if (looking) std::_Exit(3);
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      if (looks != before) std::_Exit(4);
    });
    ProgressThread thread([] {
      looking = true;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      ++looks;
      looking = false;
      return Motion::kSome;
    });
    while (!looking) std::this_thread::yield();
    std::exit(0);
  };
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_EXIT(ends(), testing::ExitedWithCode(0), "");
}

/// It has the locks of a thread that it does not have.
TEST(ProgressThreadDeathTest, AForkedChildEndsAsWell) {
  const auto ends = [] {
    std::atomic<bool> looked{false};
    ProgressThread thread([&looked] {
      looked = true;
      return Motion::kSome;
    });
    while (!looked) std::this_thread::yield();
    const auto child = ::fork();
    if (child == 0) {
      ::alarm(10);
      std::exit(0);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    std::_Exit(status == 0 ? 0 : 3);
  };
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_EXIT(ends(), testing::ExitedWithCode(0), "");
}

}  // namespace progress_thread_test
}  // namespace smp::d2d
