// tests/d2d/watch/keep_alive_test.cpp: ranks that go, with and without a word. What a silent
// machine looks like is in tests/integration/two_hosts_test.py.
#include "d2d/watch/keep_alive.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <chrono>
#include <optional>
#include <thread>

#include "smp/error.h"

namespace smp::d2d {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr KeepAliveOptions kAtOnce{.launcher_patience = 0};

/// A connection over loopback.
std::pair<base::TcpSocket, base::TcpSocket> connection() {
  auto listener = base::TcpListener::at("127.0.0.1", 1);
  EXPECT_TRUE(listener);
  auto one = base::TcpSocket::to("127.0.0.1", listener->port());
  base::TcpSocket other;
  while (!other.is_open()) other = listener->accept();
  return {std::move(one), std::move(other)};
}

/// Rank 0, which watches ranks 2 and 3; `far` are their ends.
struct Watcher {
  explicit Watcher(const KeepAliveOptions& options) {
    std::vector<WatchedRank> ranks;
    for (const int rank : {2, 3}) {
      auto [own, other] = connection();
      ranks.push_back({GlobalRank(rank), 100 + rank, "far", std::move(own)});
      far.push_back(std::move(other));
    }
    keep_alive.emplace(GlobalRank(0), std::move(ranks), options);
  }
  /// What it says of a loss, within a while.
  std::string loss() const {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (std::chrono::steady_clock::now() < end) {
      try {
        keep_alive->require_no_loss();
      } catch (const PeerLostError& error) {
        return error.what();
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return "none";
  }

  std::vector<base::TcpSocket> far;
  std::optional<KeepAlive> keep_alive;
};

TEST(KeepAlive, NamesTheRankThatHasEnded) {
  Watcher watcher(kAtOnce);
  EXPECT_NO_THROW(watcher.keep_alive->require_no_loss());
  watcher.far[1] = {};
  EXPECT_THAT(watcher.loss(), AllOf(HasSubstr("rank 0: rank 3 is gone: its process 103 on 'far' "),
                                    HasSubstr("restart from a checkpoint")));
}

/// As the kernel of a process that is killed while bytes for it wait.
TEST(KeepAlive, NamesTheRankWhoseConnectionIsReset) {
  Watcher watcher(kAtOnce);
  const linger at_once{1, 0};
  ASSERT_EQ(setsockopt(watcher.far[0].file(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once), 0);
  watcher.far[0] = {};
  EXPECT_THAT(watcher.loss(), HasSubstr("rank 0: rank 2 is gone: its process 102 on 'far' "));
}

TEST(KeepAlive, LetsALauncherEndTheJobFirst) {
  Watcher watcher({.launcher_patience = 300 * base::kMillisecond});
  const base::SteadyClock clock;
  const auto start = clock.now();
  watcher.far[0] = {};
  EXPECT_THAT(watcher.loss(), HasSubstr("rank 2 is gone"));
  EXPECT_GE(clock.now() - start, 300 * base::kMillisecond);
}

/// Rank 2, the first that would be named, has said that it leaves.
TEST(KeepAlive, MissesNobodyWhoHasLeft) {
  Watcher watcher(kAtOnce);
  {
    std::vector<WatchedRank> ranks;
    ranks.push_back({GlobalRank(0), 100, "near", std::move(watcher.far[0])});
    KeepAlive two(GlobalRank(2), std::move(ranks), kAtOnce);
    two.leave();
    two.leave();
    EXPECT_NO_THROW(two.require_no_loss());
  }
  watcher.far[1] = {};
  EXPECT_THAT(watcher.loss(), HasSubstr("rank 3 is gone"));
}

TEST(KeepAlive, MissesARankThatEndsWithoutLeaving) {
  Watcher watcher(kAtOnce);
  {
    std::vector<WatchedRank> ranks;
    ranks.push_back({GlobalRank(0), 100, "near", std::move(watcher.far[0])});
    const KeepAlive two(GlobalRank(2), std::move(ranks), kAtOnce);
  }
  EXPECT_THAT(watcher.loss(), HasSubstr("rank 2 is gone"));
}

}  // namespace
}  // namespace smp::d2d
