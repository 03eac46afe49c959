// The MPI wire keeps the contract of wires between processes; starting, joining and grouping MPI.
#include "d2d/wires/mpi/mpi_wire.h"

#include <algorithm>

#include "d2d/job/shared_mpi_session.h"
#include "d2d/wire/wire_contract.h"
#include "support/refusal.h"

namespace smp::d2d {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr base::Nanoseconds kLeaveDeadline = 60 * base::kSecond;

/// This process's end of a wire.
class MpiWires : public WireCluster {
 public:
  explicit MpiWires(MpiWireOptions options = {})
      : MpiWires(shared_mpi_session().connect_all(options)) {
    if (options.chunk_bytes > kLongestTested) return;
    edges_.insert(edges_.end(), {options.chunk_bytes, 2 * options.chunk_bytes});
  }
  explicit MpiWires(std::unique_ptr<Wire> wire) {
    ends_.push_back(std::make_unique<WireEnd>(std::move(wire)));
  }
  ~MpiWires() override { EXPECT_TRUE(ends_.front()->wire().close(kLeaveDeadline)); }
  std::vector<std::size_t> edges() const override { return edges_; }

 private:
  static constexpr std::size_t kLongestTested = 1 << 20;
  // Control bytes are received at once up to here, and about here MPI begins to ask first.
  std::vector<std::size_t> edges_{4'096};
};
struct ChunkedMpiWires : MpiWires {
  ChunkedMpiWires() : MpiWires({.chunk_bytes = 10'000}) {}
};

// Neighbours, the later one first.
Members own_pair() {
  const int first = shared_mpi_session().rank().value() / 2 * 2;
  return Members({GlobalRank(first + 1), GlobalRank(first)});
}
struct PairOfMpiWires : MpiWires {
  PairOfMpiWires() : MpiWires(shared_mpi_session().connect(own_pair())) {}
};

using AllMpiWires = testing::Types<MpiWires, ChunkedMpiWires, PairOfMpiWires>;
INSTANTIATE_TYPED_TEST_SUITE_P(mpi_wire_mpi_test, WireContract, AllMpiWires);

// Otherwise the others would be gone before they take what this rank still sends.
TEST(MpiWire, LeavesOnlyWhenItsOwnSendsAreDone) {
  MpiWires wires;
  WireEnd& end = *wires.ends().front();
  const Bytes bytes(3'000'000);
  Bytes place(bytes.size());
  const GlobalRank next((end.rank() + 1) % shared_mpi_session().size());
  const GlobalRank previous((end.rank() + shared_mpi_session().size() - 1) %
                            shared_mpi_session().size());
  if (end.rank() == 0) end.wire().send(bytes, next, 1, 1);
  if (end.rank() == 1) {
    for (int i = 0; i < 1'000; ++i) {
      EXPECT_FALSE(end.wire().leave()) << "rank 0 cannot have come";
      end.wire().poll();
    }
    end.wire().receive(place, previous, 1, 1);
  }
  EXPECT_TRUE(end.wire().close(kLeaveDeadline));
}

TEST(MpiWire, LeavesWhenAllLeave) {
  const auto wire = shared_mpi_session().connect_all();
  if (wire->rank() == GlobalRank(0)) {
    EXPECT_FALSE(wire->close(20 * base::kMillisecond)) << "the others have not come";
    EXPECT_GT(wire->patience(false), wire->patience(true));
    EXPECT_GT(wire->patience(true), 0);
  }
  shared_mpi_session().barrier();
  EXPECT_TRUE(wire->close(kLeaveDeadline));
  EXPECT_TRUE(wire->close(0)) << "closed already";
  EXPECT_EQ(wire->patience(false), 0);
}

// A message to this rank itself: the request of its receive.
MPI_Request receive_from_self(int tag) {
  static char place;
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_Irecv(&place, 1, MPI_BYTE, 0, tag, MPI_COMM_SELF, &request);
  return request;
}
void send_to_self(int tag) {
  const char byte = 0;
  MPI_Send(&byte, 1, MPI_BYTE, 0, tag, MPI_COMM_SELF);
}

TEST(TransferSet, TestsOldRequestsWhileNewOnesComeAndGo) {
  TransferSet<int> set;
  std::vector<int> completed;
  const auto add_complete = [&set] {
    set.add(receive_from_self(2), 2);
    send_to_self(2);
  };
  const auto done = [&](int payload) {
    completed.push_back(payload);
    if (payload == 2 && completed.size() < 20) add_complete();
  };
  set.add(receive_from_self(1), 1);
  add_complete();
  EXPECT_TRUE(set.test(done));
  send_to_self(1);
  while (!set.empty()) set.test(done);
  const auto old = std::find(completed.begin(), completed.end(), 1);
  EXPECT_LT(old - completed.begin(), 5) << "as soon as it was complete";
}

TEST(TransferSet, TestsAllFromTheFirst) {
  for (const int count : {1, 64, 65, 200}) {
    TransferSet<int> set;
    std::vector<int> completed;
    const auto done = [&](int payload) { completed.push_back(payload); };
    for (int i = 0; i < count; ++i) set.add(receive_from_self(1), i);
    set.test(done);  // the next window is another
    for (int i = 0; i < count; ++i) send_to_self(1);
    EXPECT_TRUE(set.test_all(done));
    EXPECT_EQ(completed.size(), static_cast<std::size_t>(count));
    EXPECT_TRUE(std::is_sorted(completed.begin(), completed.end()));
  }
}

TEST(MpiSession, KnowsTheRanksOfJobAndMachine) {
  const MpiSession& session = shared_mpi_session();
  EXPECT_TRUE(session.started_mpi());
  EXPECT_GE(session.size(), 2);
  EXPECT_EQ(session.local_size(), session.size());
  EXPECT_THAT(session.machine_of_rank(), testing::Each(0));
}

TEST(MpiSession, JoinsAnMpiThatRunsAlready) {
  {
    const MpiSession second;
    EXPECT_FALSE(second.started_mpi());
    EXPECT_EQ(second.rank(), shared_mpi_session().rank());
  }
  shared_mpi_session().barrier();
}

TEST(MpiSession, ConnectsGroupsByTheRanksOfTheJob) {
  const auto pair = shared_mpi_session().connect(own_pair());
  EXPECT_EQ(pair->members(), own_pair());
  EXPECT_EQ(pair->rank(), shared_mpi_session().rank());
  EXPECT_TRUE(pair->reaches(GlobalRank(pair->rank().value() ^ 1)));
  EXPECT_FALSE(pair->reaches(GlobalRank(pair->rank().value() ^ 2)));
  EXPECT_TRUE(pair->close(kLeaveDeadline));
}

TEST(MpiSession, RefusesGroupsThatCannotBe) {
  const MpiSession& session = shared_mpi_session();
  const auto connect = [&](const std::vector<int>& ranks) {
    return refusal([&] {
      std::vector<GlobalRank> members;
      for (const int rank : ranks) members.emplace_back(rank);
      session.connect(Members(members));
    });
  };
  const int own = session.rank().value();
  EXPECT_THAT(connect({own, own}), HasSubstr("twice"));
  EXPECT_THAT(connect({own, session.size()}), HasSubstr("the ranks of the job"));
  EXPECT_THAT(connect({(own + 1) % session.size()}),
              AllOf(HasSubstr("rank " + std::to_string(own)), HasSubstr("not one of them")));
  EXPECT_THAT(connect({}), HasSubstr("not one of them"));
}

}  // namespace
}  // namespace smp::d2d
