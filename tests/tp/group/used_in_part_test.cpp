// The average over ranks that each use a part of a whole parameter is its gradient.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "smp/tp/batch_primitives.h"
#include "tp/tp_group.h"

namespace smp::tp {
namespace used_in_part_test {

TEST(UsedInPart, CountsAPartOfAPrescaledBatchForAll) {
  for (const auto batches : {Batches::kOwn, Batches::kPrescaled}) {
    constexpr int kSize = 3;
    d2d::SimulatedJob job(kSize);
    on_group(
        job, kSize,
        [&](int rank) {
          const auto parameter = at::ones({kSize}, at::kDouble).requires_grad_();
          const auto part = used_in_part_for_tp(parameter).narrow(0, rank, 1) * 5;
          backward(part, at::ones_like(part));
          auto expected = at::zeros({kSize}, at::kDouble);
          expected[rank] = batches == Batches::kOwn ? 5 : 5 * kSize;
          EXPECT_TRUE(at::equal(parameter.grad(), expected));
        },
        batches);
  }
}

}  // namespace used_in_part_test
}  // namespace smp::tp
