// Every replica gets the values of one.
#include "dp/replica_values.h"

#include <gtest/gtest.h>

#include "d2d/wire/simulated_job.h"
#include "smp/error.h"

namespace smp::dp {
namespace replica_values_test {

std::vector<at::Tensor> tensors_of(int replica) {
  return {at::full({3, 4}, replica + 0.5),
          at::full({2}, replica, at::kLong),
          at::full({5000}, replica * 2.0, at::kDouble),
          at::full({4, 3}, replica * 3.0).t(),
          at::full({}, replica == 0, at::kBool),
          at::empty({0})};
}

TEST(ReplicaValues, AreThoseOfTheRoot) {
  for (const std::int64_t bucket : {8, 1 << 20}) {
    for (const int root : {0, 1, 2}) {
      d2d::SimulatedJob job(3);
      job.on_ranks({2, 0, 1}, [&](int rank, d2d::Communicators& own) {
        const auto group = own.group(d2d::members({1, 2, 0}));  // rank 1 is the first replica
        const auto tensors = tensors_of(rank);
        take_values_of(root, group, tensors, bucket);
        const auto expected = tensors_of(group.members()[root].value());
        for (std::size_t i = 0; i < tensors.size(); ++i) {
          EXPECT_TRUE(at::equal(tensors[i], expected[i])) << "tensor " << i << " of rank " << rank;
        }
      });
    }
  }
}

/// LibTorch writes no tensor whose elements share memory: what they share is written.
TEST(ReplicaValues, OfExpandedTensorsAreThoseOfTheRoot) {
  d2d::SimulatedJob job(2);
  job.on_ranks({0, 1}, [&](int rank, d2d::Communicators& own) {
    const auto made = [](int replica) {
      return std::vector<at::Tensor>{at::full({1, 3}, replica + 0.5).expand({4, 3}),
                                     at::full({2, 1, 1}, replica).expand({2, 3, 4}),
                                     (at::arange(6) + replica).unfold(0, 3, 1)};
    };
    const auto tensors = made(rank);
    take_values_of(1, own.all(), tensors, 8);
    const auto expected = made(1);
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      EXPECT_TRUE(at::equal(tensors[i], expected[i])) << "tensor " << i << " of rank " << rank;
      EXPECT_EQ(tensors[i].strides(), expected[i].strides());
    }
  });
}

TEST(ReplicaValues, OfSparseTensorsAreRefused) {
  d2d::SimulatedJob job(2);
  job.on_ranks({0, 1}, [&](int, d2d::Communicators& own) {
    const std::vector<at::Tensor> tensors{at::eye(2).to_sparse()};
    EXPECT_THROW(take_values_of(0, own.all(), tensors, 8), UnsupportedError);
  });
}

}  // namespace replica_values_test
}  // namespace smp::dp
