// DistributedLayerNorm equals torch::nn::LayerNorm, with means that are large too.
#include "smp/tp/distributed_layer_norm.h"

#include <gmock/gmock.h>
#include <torch/nn/modules/normalization.h>

#include "smp/error.h"
#include "support/refusal.h"
#include "tp/layer_comparison.h"

namespace smp::tp {
namespace distributed_layer_norm_test {

using testing::AllOf;
using testing::HasSubstr;

TEST(DistributedLayerNorm, EqualsLayerNorm) {
  for (const int size : {1, 2, 4}) {
    for (const bool affine : {false, true}) {
      for (const double eps : {1e-5, 0.1}) {
        for (const auto& shape : std::vector<std::vector<std::int64_t>>{{3, 8}, {2, 5, 8}}) {
          const auto options = torch::nn::LayerNormOptions({8}).elementwise_affine(affine).eps(eps);
          expect_as_plain([&] { return torch::nn::LayerNorm(options); },
                          [&] { return nn::DistributedLayerNorm(options); }, numbers(size, shape),
                          1e-12);
        }
      }
    }
  }
}

TEST(DistributedLayerNorm, TakesWhatLayerNormTakes) {
  using Shape = std::vector<std::int64_t>;
  const std::vector<std::pair<Shape, std::vector<Shape>>> all{
      {{8}, {{8}, {1, 8}, {0, 8}, {2, 0, 8}, {2, 3, 8}, {2, 1, 3, 8}}},
      {{4, 6}, {{4, 6}, {0, 4, 6}, {2, 4, 6}, {3, 2, 4, 6}}},  // cut along 4
      {{3, 4}, {{3, 4}, {2, 3, 4}}},                           // cut along the second
      {{2, 4, 3}, {{2, 4, 3}, {5, 2, 4, 3}}},
      {{0}, {{0}, {2, 0}}},
  };
  for (const int size : {1, 2, 4}) {
    for (const auto& [normalized, inputs] : all) {
      for (const bool affine : {false, true}) {
        const auto options = torch::nn::LayerNormOptions(normalized).elementwise_affine(affine);
        for (const auto& shape : inputs) {
          SCOPED_TRACE(testing::Message() << at::IntArrayRef(normalized) << " of "
                                          << at::IntArrayRef(shape) << ", " << size << " ranks");
          expect_as_plain([&] { return torch::nn::LayerNorm(options); },
                          [&] { return nn::DistributedLayerNorm(options); }, numbers(size, shape),
                          1e-12);
        }
      }
    }
  }
}

TEST(DistributedLayerNorm, TakesTensorsThatAreNotContiguous) {
  auto samples = numbers(2, {8, 3, 2});
  for (auto& tensor : samples) tensor = tensor.permute({2, 1, 0});
  expect_as_plain([] { return torch::nn::LayerNorm(torch::nn::LayerNormOptions({8})); },
                  [] { return nn::DistributedLayerNorm(8); }, samples, 1e-12);
  expect_as_plain(
      [] {
        return torch::nn::LayerNorm(torch::nn::LayerNormOptions({3, 8}));
      },
      [] {
        return nn::DistributedLayerNorm(torch::nn::LayerNormOptions({3, 8}));
      },
      samples, 1e-12);
}

/// Rows with a mean that is large against their deviation.
std::vector<at::Tensor> far_from_zero(at::ScalarType dtype, double mean) {
  auto all = numbers(4, {6, 64});
  for (auto& tensor : all) tensor = (tensor + mean).to(dtype);
  return all;
}

at::Tensor exact(const at::Tensor& input) {
  return at::layer_norm(input.to(at::kDouble), {input.size(-1)});
}

struct Errors {
  double output = 0, gradient = 0;
};

/// Largest ones, against doubles.
Errors errors_of(at::ScalarType dtype, double mean) {
  const auto samples = far_from_zero(dtype, mean);
  Errors largest;
  d2d::SimulatedJob job(4);
  on_group(job, 4, [&](int rank) {
    nn::DistributedLayerNorm layer(64);
    layer->to(dtype);
    auto input = samples[static_cast<std::size_t>(rank)].clone().requires_grad_();
    auto same = input.detach().to(at::kDouble).requires_grad_();
    const auto output = layer(input);
    const auto expected = exact(same);
    EXPECT_EQ(output.scalar_type(), dtype);
    const auto weights = weights_like(output, rank);
    backward(output, weights);
    backward(expected, weights.to(at::kDouble));
    const auto error = [](const at::Tensor& ours, const at::Tensor& theirs) {
      return (ours.to(at::kDouble) - theirs).abs().max().item<double>();
    };
    largest.output = std::max(largest.output, error(output.detach(), expected.detach()));
    largest.gradient = std::max(largest.gradient, error(input.grad(), same.grad()));
  });
  return largest;
}

TEST(DistributedLayerNorm, LosesNoDigitsToALargeMean) {
  const auto near = errors_of(at::kFloat, 0), far = errors_of(at::kFloat, 3000);
  EXPECT_LT(near.output, 1e-6);
  EXPECT_LT(near.gradient, 1e-6);
  EXPECT_LT(far.output, 1e-6) << "E[x²] - E[x]² in float would be off by 1 here";
  EXPECT_LT(far.gradient, 1e-6);
  for (const double mean : {0., 100.}) {
    const auto half = errors_of(at::kBFloat16, mean);
    EXPECT_LT(half.output, 0.02) << "the input is exact as it is";
    EXPECT_LT(half.gradient, 0.02);
  }
}

/// Two numbers a row, of all slices together.
TEST(DistributedLayerNorm, SendsTwoMomentsARow) {
  constexpr int kRanks = 4;
  constexpr std::uint64_t kRows = 300;  // so that they are no small tensor
  d2d::SimulatedJob job(kRanks);
  std::uint64_t forward = 0, both = 0;
  const auto bytes = [&] { return job.channel(0).counters().tensor_bytes_sent; };
  on_group(job, kRanks, [&](int rank) {
    nn::DistributedLayerNorm layer(8);
    auto slices = at::ones({kRows, 2}).requires_grad_();
    const auto y = layer->normalize_slices(slices);
    if (rank == 0) forward = bytes();
    backward(y, at::ones_like(y));
    if (rank == 0) both = bytes();
  });
  EXPECT_EQ(forward, 2 * (kRanks - 1) * kRows * 2 * sizeof(double) / kRanks);
  EXPECT_EQ(both, 2 * forward);
}

TEST(DistributedLayerNorm, NormalizesSlices) {
  const auto rows = numbers(1, {3, 8})[0];
  d2d::SimulatedJob job(2);
  on_group(job, 2, [&](int rank) {
    nn::DistributedLayerNorm layer(8);
    layer->to(at::kDouble);
    const auto slice = layer->normalize_slices(rows.chunk(2, 1)[static_cast<std::size_t>(rank)]);
    expect_near(slice.detach(),
                at::layer_norm(rows, {8}).chunk(2, 1)[static_cast<std::size_t>(rank)], 1e-12,
                "slice");
    EXPECT_THAT(refusal<UsageError>([&] { layer->normalize_slices(rows); }),
                HasSubstr("slices are [3, 8], expected [.., 4]"));
  });
}

TEST(DistributedLayerNorm, RefusesSizesThatDoNotFit) {
  d2d::SimulatedJob job(2);
  on_group(job, 2, [](int) {
    EXPECT_THAT(refusal<UsageError>([] { nn::DistributedLayerNorm(5); }),
                AllOf(HasSubstr("[5] for 2"), HasSubstr("its size 5 cannot be divided by 2"),
                      HasSubstr("choose a size")));
    EXPECT_THAT(refusal<UsageError>([] {
                  nn::DistributedLayerNorm(torch::nn::LayerNormOptions({3, 5}));
                }),
                HasSubstr("none of its dimensions [3, 5] can be divided by 2"));
    nn::DistributedLayerNorm layer(8);
    EXPECT_THAT(refusal<UsageError>([&] {
                  layer(at::ones({2, 4}));
                }),
                HasSubstr("input is [2, 4], expected [.., 8]; check normalized_shape"));
    EXPECT_THAT(refusal<UsageError>([&] { layer(at::ones({})); }), HasSubstr("input is [], "));
    nn::DistributedLayerNorm wide(torch::nn::LayerNormOptions({4, 6}));
    EXPECT_THAT(refusal<UsageError>([&] {
                  wide(at::ones({2, 6, 4}));
                }),
                HasSubstr("input is [2, 6, 4], expected [.., 4, 6]"));
  });
}

TEST(DistributedLayerNorm, RefusesTypesThatLibTorchRefuses) {
  d2d::SimulatedJob job(2);
  on_group(job, 2, [](int) {
    nn::DistributedLayerNorm layer(8);
    nn::DistributedLayerNorm plain(torch::nn::LayerNormOptions({8}).elementwise_affine(false));
    EXPECT_THAT(refusal<UsageError>([&] {
                  layer(at::ones({2, 8}, at::kDouble));
                }),
                HasSubstr("input of type Double, weight of type Float; convert one of them"));
    for (auto* const each : {&layer, &plain}) {
      EXPECT_THAT(refusal<UsageError>([&] {
                    (*each)(at::ones({2, 8}, at::kLong));
                  }),
                  HasSubstr("input of type Long; expected floating-point numbers"));
    }
    EXPECT_EQ(layer(at::ones({2, 8}, at::kBFloat16)).scalar_type(), at::kBFloat16);
    EXPECT_EQ(layer(at::ones({2, 8}, at::kHalf)).scalar_type(), at::kHalf);
  });
}

}  // namespace distributed_layer_norm_test
}  // namespace smp::tp
