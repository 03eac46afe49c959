// Collectives between processes: every rank gets the same bits as one that computes alone.
#include "d2d/collectives/communicator.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "d2d/job/shared_mpi_session.h"
#include "fiber/scheduler.h"
#include "smp/error.h"

namespace smp::d2d {
namespace {

constexpr fiber::WaitReason kForTheMpiTest{"the test", "", -1, -1};

class MpiCommunicatorTest : public testing::Test {
 protected:
  MpiCommunicatorTest() {
    channel_.set_failure_handler([this](const std::string& what) { own_.abort(what); });
    poll_ = scheduler_.add_poll([this] { return channel_.poll(); });
    fiber::IdlePolicy policy;
    policy.oversubscribed = true;
    scheduler_.set_idle_policy(policy);
  }
  ~MpiCommunicatorTest() override { EXPECT_TRUE(channel_.close(60 * base::kSecond)); }

  int rank() const { return own_.rank().value(); }
  int size() const { return channel_.size(); }

  void run(const std::vector<std::function<void()>>& fibers) {
    std::size_t left = fibers.size();
    fiber::Event done;
    for (const auto& body : fibers) {
      scheduler_.spawn(
          [&] {
            body();
            if (--left == 0) done.signal();
          },
          {}, 1 << 20);
    }
    done.wait(kForTheMpiTest);
  }

  static at::Tensor part_of(int rank, at::IntArrayRef sizes) {
    std::int64_t count = 1;
    for (const std::int64_t size : sizes) count *= size;
    const at::Tensor numbers = at::arange(count, at::kDouble) * 0.37 + rank * 13.7;
    return (at::sin(numbers) * at::exp(at::cos(numbers) * 8)).to(at::kFloat).reshape(sizes);
  }
  static at::Tensor sum_of(const Members& members, at::IntArrayRef sizes) {
    at::Tensor sum = part_of(members[0].value(), sizes);
    for (int i = 1; i < members.size(); ++i) sum += part_of(members[i].value(), sizes);
    return sum;
  }

  // Every collective, on small and large tensors.
  void expect_right(const Communicator& group) {
    const Members& members = group.members();
    for (const std::int64_t width : {3, 5000, 100'000}) {
      const std::vector<std::int64_t> shape{2 * group.size(), width};
      at::Tensor own = part_of(rank(), shape);
      const at::Tensor sum = sum_of(members, shape);
      EXPECT_TRUE(at::equal(group.all_reduce(own), sum));
      EXPECT_TRUE(at::equal(group.reduce_scatter(own), sum.narrow(0, 2 * group.rank(), 2)));
      const at::Tensor joined = group.all_gather(own);
      own.zero_();  // it has left
      for (int i = 0; i < group.size(); ++i) {
        EXPECT_TRUE(at::equal(joined.narrow(0, i * shape[0], shape[0]),
                              part_of(members[i].value(), shape)));
      }
    }
    const auto texts = group.all_gather({std::to_string(rank()), {}}, "a test");
    for (int i = 0; i < group.size(); ++i) {
      EXPECT_EQ(texts[static_cast<std::size_t>(i)].bytes, std::to_string(members[i].value()));
    }
    const GlobalRank root = members[group.size() - 1];
    EXPECT_EQ(group.broadcast({std::to_string(rank()), {}}, root).bytes,
              std::to_string(root.value()));
    group.barrier();
  }

  fiber::Scheduler& scheduler_ = fiber::Scheduler::install();
  Channel channel_{shared_mpi_session().connect_all()};
  Communicators own_{channel_};
  std::shared_ptr<void> poll_;
};

TEST_F(MpiCommunicatorTest, AllRanks) {
  run({[&] { expect_right(own_.all()); }});
}

TEST_F(MpiCommunicatorTest, GroupsInAnyOrder) {
  std::vector<GlobalRank> reversed = channel_.members().ranks();
  std::reverse(reversed.begin(), reversed.end());
  run({[&] { expect_right(own_.group(Members(reversed))); }});
  if (size() < 4) return;
  const Members odd({GlobalRank(3), GlobalRank(0), GlobalRank(2)});
  run({[&] {
    if (odd.contain(own_.rank())) expect_right(own_.group(odd));
  }});
}

TEST_F(MpiCommunicatorTest, LanesAndPairsBesideEachOther) {
  std::vector<std::function<void()>> fibers;
  for (std::uint64_t lane = 0; lane < 4; ++lane) {
    fibers.push_back([this, lane] { expect_right(own_.all().lane(lane)); });
  }
  const int first = rank() / 2 * 2;
  const Members pair({GlobalRank(first + 1), GlobalRank(first)});
  fibers.push_back([this, pair] { expect_right(own_.group(pair)); });
  if (rank() % 2 == 1) std::reverse(fibers.begin(), fibers.end());
  run(fibers);
}

TEST_F(MpiCommunicatorTest, ARankThatLeavesEndsTheWait) {
  run({[&] {
    own_.all().all_reduce(at::ones({10'000}));
    if (rank() == size() - 1) return own_.announce_leaving("it left after step 7");
    EXPECT_THROW(own_.all().all_reduce(at::ones({10'000})), PeerLostError);
  }});
}

}  // namespace
}  // namespace smp::d2d
