// Products of a sequence of which each rank has some positions: values and gradients.
#include "tp/slices/sequence_parts.h"

#include <gtest/gtest.h>

#include "tp/layer_comparison.h"

namespace smp::tp {
namespace sequence_parts_test {

constexpr std::int64_t kRows = 2, kWidth = 4;

at::Tensor matrix(std::int64_t rows, std::int64_t columns, int rank) {
  const auto n = at::arange(rows * columns, at::kDouble);
  return at::cos(n * 0.3 + rank).view({rows, columns});
}

struct OfRank {
  at::Tensor product, of_input, of_first, of_second, of_bias;
};

/// What each rank has of its own weights, and of the input that all of them have.
OfRank on_rank(const at::Tensor& whole, int rank, bool in_parts) {
  const auto x = whole.clone().requires_grad_();
  const auto first = matrix(3, kWidth, rank).requires_grad_();
  const auto second = matrix(2, kWidth, rank + 7).requires_grad_();
  const auto bias = matrix(1, 5, rank)[0].clone().requires_grad_();
  const auto y = in_parts ? sequence_product(part_of_sequence(x), x.size(1), {first, second}, bias)
                          : at::linear(x, at::cat({first, second}), bias);
  const auto given = weights_like(y.detach(), rank);
  if (in_parts) {
    backward(y, given);
  } else {
    y.backward(given);
  }
  return {y.detach(), x.grad(), first.grad(), second.grad(), bias.grad()};
}

TEST(SequenceProduct, IsThatOfAllPositions) {
  for (const int size : {2, 4}) {
    for (const std::int64_t length : {1, 3, 4, 6}) {
      SCOPED_TRACE(testing::Message() << size << " ranks, " << length << " positions");
      const auto x = numbers(1, {kRows, length, kWidth})[0];
      std::vector<at::Tensor> of_input;
      for (int rank = 0; rank < size; ++rank) of_input.push_back(on_rank(x, rank, false).of_input);
      d2d::SimulatedJob job(size, 4);
      on_group(
          job, size,
          [&](int rank) {
            const auto expected = on_rank(x, rank, false), own = on_rank(x, rank, true);
            expect_near(own.product, expected.product, 1e-12, "product");
            expect_near(own.of_first, expected.of_first, 1e-12, "gradient of the first weight");
            expect_near(own.of_second, expected.of_second, 1e-12, "gradient of the second weight");
            expect_near(own.of_bias, expected.of_bias, 1e-12, "gradient of the bias");
            expect_near(own.of_input, sum_of(of_input), 1e-12, "gradient of the input");
          },
          Batches::kPrescaled);
    }
  }
}

}  // namespace sequence_parts_test
}  // namespace smp::tp
