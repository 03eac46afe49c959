// Sums of many tensors in their place, several under way, in messages that take random times.
#include "d2d/collectives/sum_in_place.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <gmock/gmock.h>

#include <deque>
#include <random>

#include "d2d/wire/simulated_job.h"
#include "smp/error.h"
#include "support/refusal.h"

namespace smp::d2d {
namespace sum_in_place_test {

using Sizes = std::vector<std::int64_t>;

at::Tensor mean_in_order(const std::vector<int>& group, const Sizes& sizes, int divisor) {
  return sum_in_order(group, sizes).div_(divisor);
}

std::vector<at::Tensor> contributions(int rank, const std::vector<Sizes>& shapes) {
  std::vector<at::Tensor> tensors;
  for (const auto& sizes : shapes) tensors.push_back(contribution(rank, sizes));
  return tensors;
}

/// Tensors of up to 3,000 elements, none and single ones among them.
std::vector<Sizes> random_shapes(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<Sizes> shapes(1 + random() % 6);
  for (auto& sizes : shapes) {
    const std::int64_t length = random() % 3 == 0 ? std::int64_t(random() % 3) : random() % 1500;
    sizes = {length, 1 + std::int64_t(random() % 2)};
  }
  return shapes;
}

TEST(SumInPlace, SumsInOrderOfMembersToTheSameBits) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    const auto& group = kGroups[seed % kGroups.size()];
    const auto shapes = random_shapes(seed);
    SimulatedJob job(4, seed);
    job.on_ranks(group, [&](int rank, Communicators& own) {
      const auto tensors = contributions(rank, shapes);
      SumInPlace sum(own.group(members(group)), tensors, 3);
      sum.add();
      sum.finish();
      for (std::size_t i = 0; i < shapes.size(); ++i) {
        EXPECT_TRUE(at::equal(tensors[i], mean_in_order(group, shapes[i], 3)))
            << "seed " << seed << ", tensor " << i << ", rank " << rank;
      }
    });
    EXPECT_THAT(job.failures, testing::IsEmpty());
  }
}

// Every rank goes through its steps in an order of its own, but for the first.
TEST(SumInPlace, ManyMayBeUnderWayInAnyOrderOfSteps) {
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    const std::vector<int> group{2, 0, 1};
    SimulatedJob job(3, seed);
    job.on_ranks(group, [&](int rank, Communicators& own) {
      std::mt19937_64 random(100 * seed + static_cast<std::uint64_t>(rank));
      std::vector<std::vector<at::Tensor>> tensors;
      std::deque<SumInPlace> sums;
      std::size_t added = 0;
      while (added < 5) {
        if (sums.size() < 5 && (added == sums.size() || random() % 2 == 0)) {
          tensors.push_back(contributions(rank, random_shapes(seed + sums.size())));
          sums.emplace_back(own.group(members(group)), tensors.back(), 1);
        } else {
          sums[added++].add();
        }
      }
      std::vector<std::size_t> order{0, 1, 2, 3, 4};
      std::shuffle(order.begin(), order.end(), random);
      for (const auto i : order) sums[i].finish();
      for (std::size_t i = 0; i < sums.size(); ++i) {
        for (const auto& tensor : tensors[i]) {
          EXPECT_TRUE(at::equal(tensor, mean_in_order(group, tensor.sizes().vec(), 1)));
        }
      }
    });
  }
}

// The others may still be reading when the sums of all have come here.
TEST(SumInPlace, TensorsMayBeChangedOnceItIsFinished) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    const std::vector<int> group{0, 1, 2};
    const std::vector<Sizes> shapes{{5'000}, {3}, {4'000}};
    SimulatedJob job(3, seed);
    job.on_ranks(group, [&](int rank, Communicators& own) {
      const auto tensors = contributions(rank, shapes);
      SumInPlace sum(own.all(), tensors, 1);
      sum.add();
      sum.finish();
      std::vector<at::Tensor> seen;
      for (const auto& tensor : tensors) {
        seen.push_back(tensor.clone());
        tensor.fill_(rank);
      }
      for (std::size_t i = 0; i < shapes.size(); ++i) {
        EXPECT_TRUE(at::equal(seen[i], mean_in_order(group, shapes[i], 1)));
      }
    });
    EXPECT_THAT(job.failures, testing::IsEmpty());
  }
}

// Or what is under way would be what the other one has, who may give it away meanwhile.
TEST(SumInPlace, WhatSharesMemoryGetsItsOwnBeforeItIsSent) {
  SimulatedJob job(2);
  job.on_ranks({0, 1}, [&](int rank, Communicators& own) {
    const auto shared = contribution(rank, {5'000});
    const auto tensor = at::_lazy_clone(shared);
    SumInPlace sum(own.all(), {tensor}, 1);
    EXPECT_NE(tensor.const_data_ptr(), shared.const_data_ptr());
    sum.add();
    sum.finish();
    EXPECT_TRUE(at::equal(tensor, sum_in_order({0, 1}, {5'000})));
    EXPECT_TRUE(at::equal(shared, contribution(rank, {5'000})));
  });
}

TEST(SumInPlace, SendsWhatTheFormulaSays) {
  const std::int64_t elements = 6'000;
  SimulatedJob job(3);
  job.on_ranks({0, 1, 2}, [&](int rank, Communicators& own) {
    const auto tensors = contributions(rank, {{elements / 2}, {elements / 2}});
    SumInPlace sum(own.all(), tensors, 1);
    sum.add();
    sum.finish();
  });
  for (int rank = 0; rank < 3; ++rank) {
    const auto& counters = job.channel(rank).counters();
    EXPECT_EQ(counters.tensor_bytes_sent, 2u * 2 * elements / 3 * sizeof(float));
    EXPECT_EQ(counters.frames_sent, 4u);
  }
}

TEST(SumInPlace, WorksUnderInferenceModeOnLeavesWithHistory) {
  SimulatedJob job(2);
  job.on_ranks({0, 1}, [&](int rank, Communicators& own) {
    auto leaf = contribution(rank, {4, 600}).requires_grad_();
    const c10::InferenceMode inference;
    SumInPlace sum(own.all(), {leaf.detach()}, 2);
    sum.add();
    sum.finish();
    EXPECT_TRUE(at::equal(leaf, mean_in_order({0, 1}, {4, 600}, 2)));
  });
}

TEST(SumInPlace, MembersThatDisagreeAreTold) {
  SimulatedJob job(2);
  job.on_ranks({0, 1}, [&](int rank, Communicators& own) {
    const std::vector<at::Tensor> tensors{at::ones({10 + rank})};
    EXPECT_THAT(refusal([&] {
                  SumInPlace sum(own.all().named("gradients"), tensors, 1);
                  sum.add();
                  sum.finish();
                }),
                testing::HasSubstr("all members must make the same calls"));
  });
}

TEST(SumInPlace, EndsIfAMemberLeaves) {
  SimulatedJob job(3);
  job.on_ranks({0, 1, 2}, [&](int rank, Communicators& own) {
    if (rank == 2) return own.announce_leaving("left after step 7");
    const std::vector<at::Tensor> tensors{at::ones({3'000})};
    EXPECT_THAT(
        refusal<PeerLostError>([&] {
          SumInPlace sum(own.all().named("gradients"), tensors, 1);
          sum.add();
          sum.finish();
        }),
        testing::AllOf(testing::HasSubstr("gradients"), testing::HasSubstr("left after step 7")));
  });
}

}  // namespace sum_in_place_test
}  // namespace smp::d2d
