// Groups of ranks and what they exchange, in messages that take random times: payloads, roots,
// groups and lanes beside each other.
#include "d2d/collectives/communicator.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "d2d/wire/simulated_job.h"
#include "support/refusal.h"

namespace smp::d2d {
namespace communicator_test {

using testing::AllOf;
using testing::HasSubstr;

TEST(Communicator, GatherGivesEveryonesPayloadInOrderOfMembers) {
  for (const auto& group : kGroups) {
    SimulatedJob job(4);
    job.on_ranks(group, [&](int rank, Communicators& own) {
      const Communicator all = own.group(members(group));
      for (int round = 0; round < 5; ++round) {
        const auto payloads =
            all.all_gather({std::to_string(10 * round + rank), {at::full({2000}, rank)}}, "a test");
        ASSERT_EQ(payloads.size(), group.size());
        for (std::size_t i = 0; i < group.size(); ++i) {
          EXPECT_EQ(payloads[i].bytes, std::to_string(10 * round + group[i]));
          EXPECT_EQ(payloads[i].tensors.at(0).sum().item<float>(), 2000 * group[i]);
        }
      }
    });
  }
}

TEST(Communicator, NumbersItsMembersByPosition) {
  SimulatedJob job(4);
  const Communicator group = job.rank(0).group(members({3, 0, 2}));
  EXPECT_EQ(group.rank(), 1);
  EXPECT_EQ(group.size(), 3);
  EXPECT_EQ(group.members(), members({3, 0, 2}));
  EXPECT_EQ(job.rank(2).all().members(), Members::all(4));
}

TEST(Communicator, BroadcastGivesTheRootsPayload) {
  SimulatedJob job(4);
  job.on_ranks({3, 0, 2}, [&](int rank, Communicators& own) {
    const Communicator group = own.group(members({3, 0, 2}));
    for (const int root : {0, 2, 3}) {
      const Payload payload =
          group.broadcast({std::to_string(rank), {at::full({5000}, rank)}}, GlobalRank(root));
      EXPECT_EQ(payload.bytes, std::to_string(root));
      EXPECT_EQ(payload.tensors.at(0)[4999].item<float>(), root);
    }
    EXPECT_THAT(refusal([&] { group.broadcast({}, GlobalRank(1)); }),
                AllOf(HasSubstr("rank 1"), HasSubstr("{3, 0, 2}")));
  });
}

TEST(Communicator, BarrierWaitsForTheLastMember) {
  SimulatedJob job(3);
  int came = 0;
  job.on_ranks({0, 1, 2}, [&](int rank, Communicators& own) {
    fiber::Scheduler::instance().sleep_for(rank * 10'000, kForTheTest);
    ++came;
    own.all().barrier();
    EXPECT_EQ(came, 3);
  });
}

TEST(Communicator, GroupsDoNotMix) {
  SimulatedJob job(3);
  job.on_ranks({0, 1, 2}, [&](int rank, Communicators& own) {
    if (rank == 0) {
      own.group(members({0, 1})).broadcast(text("pair"), GlobalRank(0));
      own.group(members({1, 0})).broadcast(text("other pair"), GlobalRank(0));
    } else if (rank == 1) {
      EXPECT_EQ(own.group(members({1, 0})).broadcast({}, GlobalRank(0)).bytes, "other pair");
      EXPECT_EQ(own.group(members({0, 1})).broadcast({}, GlobalRank(0)).bytes, "pair");
    }
    EXPECT_EQ(own.all().broadcast(text(rank == 0 ? "all" : ""), GlobalRank(0)).bytes, "all");
  });
}

TEST(Communicator, LanesAndGroupsRunBesideEachOther) {
  constexpr int kLanes = 6;
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    SimulatedJob job(4, seed);
    std::mt19937_64 random(seed);
    std::vector<std::function<void()>> fibers;
    for (const auto& group : {std::vector<int>{3, 0, 2}, {0, 1, 2, 3}, {1, 0}}) {
      for (int lane = 0; lane < kLanes; ++lane) {
        for (const int rank : group) {
          fibers.push_back([&job, group, lane, rank] {
            const Communicator own =
                job.rank(rank).group(members(group)).lane(static_cast<std::uint64_t>(lane));
            for (int round = 0; round < 3; ++round) {
              const int key = lane * 10 + round;
              const std::vector<std::int64_t> shape{own.size(), 1 + key * 40};
              EXPECT_TRUE(at::equal(own.all_reduce(contribution(rank, shape) + key),
                                    own.all_reduce(contribution(rank, shape) + key)));
              const auto gathered = own.all_gather(text(std::to_string(rank * 100 + key)), "lanes");
              for (int i = 0; i < own.size(); ++i) {
                EXPECT_EQ(gathered[static_cast<std::size_t>(i)].bytes,
                          std::to_string(group[static_cast<std::size_t>(i)] * 100 + key));
              }
              own.reduce_scatter(contribution(rank, shape));
            }
          });
        }
      }
    }
    std::shuffle(fibers.begin(), fibers.end(), random);
    job.run(fibers);
    EXPECT_THAT(job.failures, testing::IsEmpty());
  }
}

}  // namespace communicator_test
}  // namespace smp::d2d
