// Replicas get the values of those that own them, several rounds at once.
#include "dp/owner_values.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>

#include "d2d/wire/simulated_job.h"
#include "smp/error.h"

namespace smp::dp {
namespace owner_values_test {

std::vector<at::Tensor> tensors_of(int replica) {
  return {at::full({3, 4}, replica + 0.5),
          at::full({2}, replica, at::kLong),
          at::full({5000}, replica * 2.0, at::kDouble),
          at::full({4, 3}, replica * 3.0).t(),
          at::full({}, replica == 0, at::kBool),
          at::full({700}, replica * 4.0),
          at::empty({0})};
}

const std::vector<int> kOwners{2, 1, 0, 1, -1, 0, 1};

TEST(OwnerValues, AreThoseOfTheOwnersIfTheyHaveOne) {
  for (const std::int64_t round : {8, 1 << 20}) {
    for (const std::uint64_t seed : {1, 2, 3}) {
      d2d::SimulatedJob job(3, seed);
      job.on_ranks({2, 0, 1}, [&](int rank, d2d::Communicators& own) {
        const auto group = own.group(d2d::members({1, 2, 0}));  // rank 1 is the first replica
        const auto tensors = tensors_of(rank);
        OwnerValues values(round);
        values.take(group, tensors, kOwners);
        values.finish();
        for (std::size_t i = 0; i < tensors.size(); ++i) {
          const int source = kOwners[i] < 0 ? rank : group.members()[kOwners[i]].value();
          EXPECT_TRUE(at::equal(tensors[i], tensors_of(source)[i])) << i << " of rank " << rank;
        }
      });
      EXPECT_THAT(job.failures, testing::IsEmpty());
    }
  }
}

TEST(OwnerValues, ComeFromSeveralGroupsAtOnce) {
  d2d::SimulatedJob job(4, 5);
  job.on_ranks({0, 1, 2, 3}, [&](int rank, d2d::Communicators& own) {
    const int first = rank - rank % 2;
    const auto pair = own.group(d2d::members({first, first + 1}));
    const auto of_pair = tensors_of(rank), of_all = tensors_of(10 + rank);
    OwnerValues values(64);
    values.take(pair, of_pair, std::vector<int>(of_pair.size(), 1));
    values.take(own.all(), of_all, std::vector<int>(of_all.size(), 3));
    values.finish();
    for (std::size_t i = 0; i < of_pair.size(); ++i) {
      EXPECT_TRUE(at::equal(of_pair[i], tensors_of(first + 1)[i])) << i << " of rank " << rank;
      EXPECT_TRUE(at::equal(of_all[i], tensors_of(13)[i])) << i << " of rank " << rank;
    }
  });
  EXPECT_THAT(job.failures, testing::IsEmpty());
}

TEST(OwnerValues, TravelInSeveralRoundsAtOnce) {
  d2d::SimulatedJob job(2, 1);
  job.on_ranks({0, 1}, [&](int rank, d2d::Communicators& own) {
    const std::vector<int> owners{0, 0, 0, 1, 1, 1};
    std::vector<at::Tensor> tensors;
    for (std::size_t i = 0; i < owners.size(); ++i) tensors.push_back(at::full({100}, rank));
    const auto sent = [&] { return job.channel(0).counters().frames_sent; };
    OwnerValues values(8);
    if (rank == 1) {
      fiber::Scheduler::instance().sleep_for(base::kSecond, d2d::kForTheTest);
      EXPECT_EQ(sent(), 3u) << "the other rank waits for none of the first three";
    }
    values.take(own.all(), tensors, owners);
    values.finish();
    for (std::size_t i = 0; i < owners.size(); ++i) {
      EXPECT_EQ(tensors[i].min().item<std::int64_t>(), owners[i]) << "rank " << rank;
    }
  });
  EXPECT_THAT(job.failures, testing::IsEmpty());
}

/// What was kept for a backward of before must not be taken for what it was.
TEST(OwnerValues, CountAsWritesWhereTheyCome) {
  d2d::SimulatedJob job(2, 1);
  job.on_ranks({0, 1}, [&](int rank, d2d::Communicators& own) {
    const std::vector<at::Tensor> tensors{at::full({10}, 0.5 * rank), at::full({20}, 0.5 * rank),
                                          at::full({4, 3}, 0.5 * rank).t()};
    for (const auto& tensor : tensors) tensor.requires_grad_();
    std::vector<std::int64_t> before;
    for (const auto& tensor : tensors) before.push_back(tensor._version());
    OwnerValues values(1 << 20);
    values.take(own.all(), tensors, {0, 1, 0});
    values.finish();
    EXPECT_EQ(tensors[0]._version() > before[0], rank == 1);
    EXPECT_EQ(tensors[1]._version() > before[1], rank == 0);
    EXPECT_GT(tensors[2]._version(), before[2]) << "a copy travelled";
  });
  EXPECT_THAT(job.failures, testing::IsEmpty());
}

TEST(OwnerValues, OfSparseTensorsAreRefused) {
  d2d::SimulatedJob job(2);
  job.on_ranks({0, 1}, [&](int, d2d::Communicators& own) {
    OwnerValues values(8);
    EXPECT_THROW(values.take(own.all(), {at::eye(2).to_sparse()}, {0}), UnsupportedError);
  });
}

}  // namespace owner_values_test
}  // namespace smp::dp
