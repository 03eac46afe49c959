// The MPI transport keeps the contract between processes, and what only it can show.
#include "d2d/mpi_transport.h"

#include <numeric>

#include "d2d/mpi_session.h"
#include "d2d/transport_contract.h"

namespace smp::d2d {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

/// MPI can be started once in a process: all tests share the session.
class SessionOfAllTests : public testing::Environment {
 public:
  void SetUp() override { session_ = std::make_unique<MpiSession>(); }
  void TearDown() override { session_.reset(); }
  static MpiSession& get() { return *session_; }

 private:
  static inline std::unique_ptr<MpiSession> session_;
};
const auto* const kEnvironment = testing::AddGlobalTestEnvironment(new SessionOfAllTests);

std::vector<int> all_ranks() {
  std::vector<int> ranks(SessionOfAllTests::get().size());
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

constexpr base::Nanoseconds kDeadline = 60 * base::kSecond;

/// This process's rank among all of the job.
class MpiCluster : public Cluster {
 public:
  explicit MpiCluster(MpiTransportOptions options = {}) {
    players_.push_back(
        std::make_unique<Player>(SessionOfAllTests::get().connect(all_ranks(), options)));
  }
  ~MpiCluster() override { EXPECT_TRUE(transport().close(kDeadline)); }

  Player& self() { return *players_.front(); }
  MpiTransport& transport() { return static_cast<MpiTransport&>(*self().transport); }
};

struct ChunkedCluster : MpiCluster {
  ChunkedCluster() : MpiCluster({.chunk_bytes = 10'000}) {}
};

using Clusters = testing::Types<MpiCluster, ChunkedCluster>;
INSTANTIATE_TYPED_TEST_SUITE_P(mpi_transport_mpi_test, TransportContract, Clusters);

TEST(MpiTransport, ReportsATensorThatWasChangedInFlight) {
  MpiCluster cluster;
  Player& self = cluster.self();
  at::Tensor tensor = at::zeros({1 << 20});
  if (self.rank() == 0) {
    self.transport->send(1, Frame{"changed", {at::ones({1}), tensor}});
    tensor.add_(1);
  }
  cluster.run_until([](Player& player) { return player.rank() != 1 || !player.arrived.empty(); });
  if (self.rank() != 0) {
    EXPECT_THAT(self.failures, IsEmpty());
    return;
  }
  EXPECT_THAT(self.failures,
              ElementsAre(AllOf(HasSubstr("tensor 1"), HasSubstr("[1048576]"), HasSubstr("rank 1"),
                                HasSubstr("changed in place"))));
}

TEST(MpiTransport, AllowsChangesOfWhatItCopied) {
  MpiCluster cluster;
  Player& self = cluster.self();
  at::Tensor tensor = at::zeros({1024, 1024});
  if (self.rank() == 0) {
    self.transport->send(1, Frame{"strided", {tensor.t()}});
    tensor.add_(1);
  }
  cluster.run_until([](Player& player) { return player.rank() != 1 || !player.arrived.empty(); });
  EXPECT_THAT(self.failures, IsEmpty());
  if (self.rank() == 1) {
    EXPECT_EQ(self.arrived.front().frame.tensors[0].sum().item<float>(), 0);
  }
}

TEST(MpiTransport, AllowsChangesOnceTheAnswerIsThere) {
  MpiCluster cluster;
  Player& self = cluster.self();
  constexpr int kRounds = 100;
  at::Tensor tensor = at::zeros({5000});
  const auto pass_on = [&] { self.transport->send(1 - self.rank(), Frame{"", {tensor}}); };
  self.transport->set_receiver([&](int source, Frame&& frame) {
    self.arrived.push_back({source, std::move(frame)});
    tensor.add_(1);
    if (self.arrived.size() < kRounds) pass_on();
  });
  if (self.rank() == 0) pass_on();
  cluster.run_until(
      [&](Player& player) { return player.rank() > 1 || player.arrived.size() >= kRounds - 1u; });
  EXPECT_THAT(self.failures, IsEmpty());
}

TEST(MpiTransport, LeavesWhenAllLeave) {
  MpiCluster cluster;
  MpiTransport& transport = cluster.transport();
  if (transport.rank() == 0) {
    EXPECT_FALSE(transport.close(20 * base::kMillisecond)) << "the others have not come";
  }
  SessionOfAllTests::get().barrier();
  EXPECT_TRUE(transport.close(kDeadline));
  EXPECT_TRUE(transport.close(0)) << "closed already";
}

TEST(MpiTransport, DeliversWhatWasSentBeforeLeaving) {
  MpiCluster cluster;
  Player& self = cluster.self();
  const int next = (self.rank() + 1) % cluster.size();
  self.transport->send(next, Frame{"nobody reads this", {at::ones({1 << 20})}});
  EXPECT_TRUE(cluster.transport().close(kDeadline));
  EXPECT_TRUE(self.transport->drained());
  EXPECT_THAT(self.arrived, IsEmpty());
}

TEST(MpiTransport, RefusesToSendAfterLeaving) {
  MpiCluster cluster;
  EXPECT_TRUE(cluster.transport().close(kDeadline));
  const int next = (cluster.self().rank() + 1) % cluster.size();
  EXPECT_THROW(cluster.transport().send(next, Frame{}), UsageError);
}

TEST(MpiSession, KnowsTheRanksOfJobAndMachine) {
  const MpiSession& session = SessionOfAllTests::get();
  EXPECT_TRUE(session.started_mpi());
  EXPECT_GE(session.size(), 2);
  EXPECT_EQ(session.local_size(), session.size());
  EXPECT_THAT(session.machine_of_rank(), testing::Each(0));
}

TEST(MpiSession, JoinsAnMpiThatRunsAlready) {
  {
    const MpiSession second;
    EXPECT_FALSE(second.started_mpi());
    EXPECT_EQ(second.rank(), SessionOfAllTests::get().rank());
  }
  SessionOfAllTests::get().barrier();
}

TEST(MpiSession, ConnectsGroupsInTheirOrder) {
  const MpiSession& session = SessionOfAllTests::get();
  const int base = session.rank() / 2 * 2;  // pairs of neighbours, the later one first
  auto pair = session.connect({base + 1, base});
  EXPECT_EQ(pair->size(), 2);
  EXPECT_EQ(pair->rank(), base + 1 - session.rank());
  EXPECT_TRUE(pair->close(kDeadline));
}

TEST(MpiSession, RefusesGroupsThatCannotBe) {
  const MpiSession& session = SessionOfAllTests::get();
  EXPECT_THROW(session.connect({0, 0}), UsageError);
  EXPECT_THROW(session.connect({session.rank(), session.size()}), UsageError);
  EXPECT_THROW(session.connect({(session.rank() + 1) % session.size()}), UsageError);
  EXPECT_THROW(session.connect({}), UsageError);
}

}  // namespace
}  // namespace smp::d2d
