// tests/d2d/watch/keep_alive_links_test.cpp: ranks of two machines connect, each on a thread, over
// the loopback interface.
#include "d2d/watch/keep_alive_links.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <set>
#include <span>
#include <sstream>
#include <thread>

#include "smp/error.h"

namespace smp::d2d {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

constexpr int kRanks = 5;
const std::vector<int> kMachines{0, 0, 2, 2, 0};  // the last one on the first machine

/// The first ranks of both machines, the second ones, and the third with the first.
const std::set<std::pair<int, int>> kPairs{{0, 2}, {1, 3}, {2, 4}};

/// Called by one rank with what all have given, before they get it.
using Tamper = std::function<void(std::vector<std::string>& texts, int call)>;

class Job {
 public:
  explicit Job(Tamper tamper = [](auto&, int) {}) : tamper_(std::move(tamper)) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < kRanks; ++rank) threads.emplace_back([this, rank] { join(rank); });
    for (auto& thread : threads) thread.join();
  }

  void end(int rank) { keep_alive_[static_cast<std::size_t>(rank)] = nullptr; }
  const std::vector<std::string>& unreached(int rank) const {
    return unreached_[static_cast<std::size_t>(rank)];
  }
  /// What `rank` says of a loss within `patience`; empty: nothing.
  std::string loss(int rank, std::chrono::milliseconds patience) const {
    const auto end = std::chrono::steady_clock::now() + patience;
    while (std::chrono::steady_clock::now() < end) try {
        keep_alive_[static_cast<std::size_t>(rank)]->require_no_loss();
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      } catch (const PeerLostError& error) {
        return error.what();
      }
    return {};
  }

 private:
  void join(int rank) {
    const auto index = static_cast<std::size_t>(rank);
    int calls = 0;
    const auto all_gather = [&](const std::string& own) {
      texts_[index] = own;
      barrier_.arrive_and_wait();
      if (rank == 0) tamper_(texts_, calls);
      ++calls;
      barrier_.arrive_and_wait();
      auto all = texts_;
      barrier_.arrive_and_wait();
      return all;
    };
    const KeepAliveMeeting meeting{
        GlobalRank(rank), kMachines, all_gather, 4711, {.launcher_patience = 0}};
    keep_alive_[index] =
        connect_keep_alive(meeting, KeepAliveOffer("lo", kRanks), unreached_[index]);
  }

  Tamper tamper_;
  std::barrier<> barrier_{kRanks};
  std::vector<std::string> texts_ = std::vector<std::string>(kRanks);
  std::vector<std::unique_ptr<KeepAlive>> keep_alive_ =
      std::vector<std::unique_ptr<KeepAlive>>(kRanks);
  std::vector<std::vector<std::string>> unreached_ = std::vector<std::vector<std::string>>(kRanks);
};

constexpr std::chrono::milliseconds kLong{20'000}, kShort{50};

TEST(KeepAliveLinks, EveryRankIsWatchedFromTheOtherMachine) {
  for (int gone = 0; gone < kRanks; ++gone) {
    Job job;
    for (int rank = 0; rank < kRanks; ++rank) EXPECT_THAT(job.unreached(rank), IsEmpty());
    job.end(gone);
    for (int rank = 0; rank < kRanks; ++rank) {
      if (rank == gone) continue;
      const bool watches = kPairs.contains(std::minmax(rank, gone));
      const auto text = job.loss(rank, watches ? kLong : kShort);
      if (watches) {
        EXPECT_THAT(text, HasSubstr("rank " + std::to_string(gone) + " is gone"));
      } else {
        EXPECT_EQ(text, "");
      }
    }
  }
}

/// The first that an offer names.
int port_of(const std::string& offer) {
  std::istringstream words(offer);
  std::string process, host, address;
  int port = 0;
  words >> process >> host >> address >> port;
  return port;
}

/// A port is open for a moment, and its number is no secret.
TEST(KeepAliveLinks, StrangersWhoCallAreNotTaken) {
  std::vector<base::TcpSocket> strangers;
  const struct {
    std::uint64_t secret = 4712;
    std::int32_t from = 0, to = 2;
  } wrong;
  Job job([&](std::vector<std::string>& texts, int call) {
    if (call != 0) return;
    for (const bool talks : {false, true}) {
      auto& stranger = strangers.emplace_back(base::TcpSocket::to("127.0.0.1", port_of(texts[2])));
      while (!stranger.is_connected() && stranger.is_open()) std::this_thread::yield();
      if (talks) stranger.send(std::as_bytes(std::span(&wrong, 1)));
    }
  });
  ASSERT_THAT(strangers, SizeIs(2));
  for (int rank = 0; rank < kRanks; ++rank) EXPECT_THAT(job.unreached(rank), IsEmpty());
  strangers.clear();
  EXPECT_EQ(job.loss(2, kShort), "");
  job.end(0);
  EXPECT_THAT(job.loss(2, kLong), HasSubstr("rank 0 is gone"));
}

/// Connections to a stranger are made, but rank 2 says that nobody has come.
TEST(KeepAliveLinks, StrangersWhoAnswerAreNotTaken) {
  const auto stranger = base::TcpListener::at("127.0.0.1", 1);
  ASSERT_TRUE(stranger);
  const Job job([&](std::vector<std::string>& texts, int call) {
    if (call != 0) return;
    std::istringstream words(texts[2]);
    std::string process, host;
    words >> process >> host;
    texts[2] = process + ' ' + host + " 127.0.0.1 " + std::to_string(stranger->port());
  });
  EXPECT_THAT(job.unreached(0), SizeIs(1));
  EXPECT_THAT(job.unreached(2), SizeIs(1));
  for (const int rank : {1, 3, 4}) EXPECT_THAT(job.unreached(rank), IsEmpty());
}

TEST(KeepAliveLinks, AMachineThatIsNotReachedIsTold) {
  Job job([](std::vector<std::string>& texts, int call) {
    if (call != 0) return;
    std::istringstream words(texts[2]);
    std::string process, host, address, port;
    words >> process >> host;
    texts[2] = process + " far-" + host;
    while (words >> address >> port) texts[2] += ' ' + address + " 1";
  });
  const auto host = job.unreached(0);
  ASSERT_THAT(host, SizeIs(1));
  EXPECT_THAT(host.front(), HasSubstr("far-"));
  EXPECT_THAT(job.unreached(2), SizeIs(1)) << "of the caller, whom it would have watched as well";
  for (const int rank : {1, 3, 4}) EXPECT_THAT(job.unreached(rank), IsEmpty());
  job.end(3);
  EXPECT_THAT(job.loss(1, kLong), HasSubstr("rank 3 is gone"));
}

TEST(KeepAliveLinks, AnInterfaceThatIsMissingIsRefused) {
  try {
    const KeepAliveOffer offer("eth77", kRanks);
    FAIL() << "there is none";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr("keep_alive_interface = eth77"), HasSubstr("it has ")));
  }
}

}  // namespace
}  // namespace smp::d2d
