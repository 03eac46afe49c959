// What operators are said to cost, against closed formulas.
#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/rnn.h>
#include <torch/types.h>

#include "trial/traced_run.h"

namespace smp::partitioning {
namespace {

TEST(OperatorWork, OfALinearLayerIsTwoFlopsAnElementOfTheProduct) {
  const auto weight = torch::ones({5, 7});
  const auto bias = torch::ones({5});
  const auto flat = torch::ones({3, 7});
  const auto deep = torch::ones({2, 3, 7});
  EXPECT_EQ(meter([&] { torch::linear(flat, weight, bias); }).flops, 2.0 * 3 * 7 * 5);
  EXPECT_EQ(meter([&] { torch::linear(flat, weight); }).flops, 2.0 * 3 * 7 * 5);
  EXPECT_EQ(meter([&] { torch::linear(deep, weight, bias); }).flops, 2.0 * 6 * 7 * 5);
}

TEST(OperatorWork, OfAttentionIsTwoProducts) {
  const auto query = torch::ones({2, 3, 4, 8});
  const auto key = torch::ones({2, 3, 6, 8});
  const auto value = torch::ones({2, 3, 6, 5});
  EXPECT_EQ(meter([&] { at::scaled_dot_product_attention(query, key, value); }).flops,
            2.0 * 2 * 3 * 4 * 6 * (8 + 5));
  EXPECT_EQ(meter([&] { torch::matmul(torch::matmul(query, key.transpose(2, 3)), value); }).flops,
            2.0 * 2 * 3 * 4 * 6 * (8 + 5));
}

TEST(OperatorWork, OfAConvolutionIsAKernelAnOutput) {
  const auto image = torch::ones({2, 4, 9, 9});
  const std::vector<std::int64_t> ones{1, 1}, zeros{0, 0};
  EXPECT_EQ(meter([&] {
              torch::conv2d(image, torch::ones({6, 4, 3, 3}));
            }).flops,
            2.0 * 2 * 6 * 7 * 7 * 4 * 3 * 3);
  EXPECT_EQ(meter([&] {
              at::conv2d(image, torch::ones({6, 2, 3, 3}), {}, ones, zeros, ones, /*groups=*/2);
            }).flops,
            2.0 * 2 * 6 * 7 * 7 * 2 * 3 * 3);
  EXPECT_EQ(meter([&] {
              torch::conv_transpose2d(image, torch::ones({4, 6, 3, 3}));
            }).flops,
            2.0 * 2 * 4 * 9 * 9 * 6 * 3 * 3);
}

TEST(OperatorWork, OfALookUpDoesNotDependOnTheTable) {
  const auto rows = torch::zeros({4}, torch::kLong);
  const auto small = torch::ones({10, 8});
  const auto large = torch::ones({10000, 8});
  EXPECT_EQ(meter([&] { torch::embedding(small, rows); }).seconds,
            meter([&] { torch::embedding(large, rows); }).seconds);
}

TEST(OperatorWork, OfAViewIsNothing) {
  const auto x = torch::ones({4, 6});
  EXPECT_EQ(meter([&] { x.view({24}).slice(0, 2, 4).unsqueeze(0).expand({3, 2}); }).seconds, 0);
  EXPECT_GT(meter([&] { x.add(1); }).seconds, 0);
}

TEST(OperatorWork, OfADropoutIsItsRandomNumbers) {
  const auto x = torch::ones({1000, 1000});
  const auto seconds = [&](double p, const char* device) {
    return meter([&] { torch::dropout(x, p, /*train=*/true); }, device).seconds;
  };
  const auto& core = base::devices()[0];
  EXPECT_GT(seconds(0.1, "cpu"), 1e6 * core.draw_seconds);
  EXPECT_LT(seconds(0.1, "h100"), 50e-6) << "there its bytes count";
  const auto drawn = meter([&] { torch::empty({1000, 1000}).bernoulli_(0.5); }).seconds;
  EXPECT_DOUBLE_EQ(drawn, core.launch_seconds + 1e6 * core.draw_seconds);
}

// ---- devices -----------------------------------------------------------------------------------

/// Large enough that computing takes longer than moving the bytes.
double product_seconds(const std::string& device, at::ScalarType type) {
  const auto square = torch::empty({4096, 4096}, at::device(at::kMeta).dtype(type));
  return meter([&] { torch::mm(square, square); }, device).seconds;
}

TEST(OperatorWork, IsPricedByTheTypeOfItsNumbers) {
  const double flops = 2.0 * 4096 * 4096 * 4096;
  for (const auto& device : base::devices()) {
    const auto seconds_at = [&](base::Precision precision) {
      return device.launch_seconds +
             flops / (device.reached_peak * device.peak[static_cast<std::size_t>(precision)]);
    };
    using enum base::Precision;
    EXPECT_DOUBLE_EQ(product_seconds(device.name, at::kDouble), seconds_at(kFloat64));
    EXPECT_DOUBLE_EQ(product_seconds(device.name, at::kFloat), seconds_at(kFloat32));
    EXPECT_DOUBLE_EQ(product_seconds(device.name, at::kBFloat16), seconds_at(kHalf));
    EXPECT_DOUBLE_EQ(product_seconds(device.name, at::kHalf), seconds_at(kHalf));
  }
}

TEST(OperatorWork, FollowsLibTorchsSettingOfTf32) {
  const auto& h100 = *base::find_device("h100");
  const double whole = product_seconds("h100", at::kFloat);
  at::globalContext().setAllowTF32CuBLAS(true);
  const double tf32 = product_seconds("h100", at::kFloat);
  at::globalContext().setAllowTF32CuBLAS(false);
  const double flops = 2.0 * 4096 * 4096 * 4096;
  EXPECT_DOUBLE_EQ(tf32, h100.launch_seconds + flops / (h100.reached_peak * h100.peak[2]));
  EXPECT_EQ(product_seconds("h100", at::kFloat), whole);
  EXPECT_GT(whole, 5 * tf32);
}

TEST(OperatorWork, OfAutocastIsThatOfTheShortNumbers) {
  const auto square = torch::ones({64, 64});
  at::autocast::set_autocast_enabled(at::kCPU, true);
  const auto seconds = meter([&] { torch::mm(square, square); }, "cpu").times.forward;
  at::autocast::set_autocast_enabled(at::kCPU, false);
  at::autocast::clear_cache();
  const double bytes = 2 * 64 * 64 * 4 + 64 * 64 * 2;
  EXPECT_DOUBLE_EQ(seconds,
                   base::devices()[0].seconds(2.0 * 64 * 64 * 64, base::Precision::kHalf, bytes));
}

// ---- backward ----------------------------------------------------------------------------------

/// In launches and bytes at a core's speed, where nothing is large enough for arithmetic to count.
struct Passes {
  int kernels;
  double bytes;
};
double seconds_of(const Passes& passes) {
  const auto& core = base::devices()[0];
  return passes.kernels * core.launch_seconds + passes.bytes / core.memory_bandwidth;
}

at::Tensor wanted(at::IntArrayRef sizes) { return torch::ones(sizes).requires_grad_(true); }

/// Not a leaf, as what an earlier module computed.
at::Tensor computed(at::IntArrayRef sizes) { return wanted(sizes) + 0; }

TEST(OperatorWork, BackwardOfAProductIsOneProductForEachGradient) {
  constexpr std::int64_t n = 512;
  const auto weight = wanted({n, n}), frozen = torch::ones({n, n});
  const auto x = computed({n, n}), data = torch::ones({n, n});
  const auto times = [](const at::Tensor& a, const at::Tensor& b) {
    return meter([&] { torch::linear(a, b); }).times;
  };
  const double product = times(data, frozen).forward;
  const double sum = seconds_of({1, 3 * 4.0 * n * n});  // with the gradient of earlier microbatches
  EXPECT_EQ(times(data, frozen).backward, 0);
  EXPECT_DOUBLE_EQ(times(x, frozen).backward, product) << "frozen weights";
  EXPECT_DOUBLE_EQ(times(x, frozen).weights, 0);
  EXPECT_DOUBLE_EQ(times(data, weight).backward, product + sum) << "the first module";
  EXPECT_DOUBLE_EQ(times(data, weight).weights, product + sum);
  EXPECT_DOUBLE_EQ(times(x, weight).backward, 2 * product + sum);
  EXPECT_DOUBLE_EQ(times(x, weight).weights, product + sum);
  const at::NoGradGuard none;
  EXPECT_EQ(times(x, weight).backward, 0);
}

TEST(OperatorWork, BackwardOfABiasIsASum) {
  const auto weight = torch::ones({512, 512}), bias = wanted({512});
  const auto seen = meter([&] { torch::linear(torch::ones({100, 512}), weight, bias); });
  EXPECT_DOUBLE_EQ(seen.times.backward, seconds_of({2, 4.0 * (51200 + 512) + 3 * 4.0 * 512}))
      << "no product, which would take much longer";
  EXPECT_DOUBLE_EQ(seen.times.weights, seen.times.backward);
}

TEST(OperatorWork, BackwardOfAConvolutionIsOneForEachGradient) {
  const auto image = computed({2, 32, 30, 30}), weight = wanted({32, 32, 3, 3});
  const auto frozen = weight.detach();
  const auto both = meter([&] { torch::conv2d(image, weight); }).times;
  const auto one = meter([&] { torch::conv2d(image, frozen); }).times;
  EXPECT_DOUBLE_EQ(one.backward, one.forward);
  EXPECT_DOUBLE_EQ(both.backward, 2 * one.forward + seconds_of({1, 3 * 4.0 * weight.numel()}));
}

TEST(OperatorWork, BackwardOfAnElementIsAPassOverIt) {
  const auto x = computed({1000});
  EXPECT_DOUBLE_EQ(meter([&] { x.tanh(); }).times.backward, seconds_of({1, 3 * 4000.0}));
  EXPECT_EQ(meter([&] { x.detach().tanh(); }).times.backward, 0);
  EXPECT_EQ(meter([&] { x.gt(0); }).times.backward, 0) << "truth has no gradient";
  EXPECT_EQ(meter([&] { x + x; }).times.backward, 0) << "passed on as it came";
  const auto row = computed({10});
  EXPECT_DOUBLE_EQ(meter([&] {
                     x.view({100, 10}) + row;
                   }).times.backward,
                   seconds_of({1, 4000.0 + 40}))
      << "a sum for what was broadcast";
}

TEST(OperatorWork, BackwardOfAViewIsNothingUnlessItIsOfAPart) {
  const auto x = computed({100, 10});
  EXPECT_EQ(meter([&] { x.view({1000}).unsqueeze(0).transpose(0, 1); }).times.backward, 0);
  EXPECT_DOUBLE_EQ(meter([&] { x.slice(0, 0, 10); }).times.backward,
                   seconds_of({1, 4000 + 2 * 400.0}));
}

TEST(OperatorWork, BackwardOfALookUpFillsATableWithZerosAndAddsRows) {
  const auto rows = torch::zeros({4}, torch::kLong), table = wanted({1000, 8});
  const auto seen = meter([&] { torch::embedding(table, rows); }).times;
  EXPECT_DOUBLE_EQ(seen.backward, seconds_of({2, 32000 + 3 * 128.0 + 3 * 32000}));
  EXPECT_DOUBLE_EQ(seen.weights, seen.backward);
}

TEST(OperatorWork, BackwardOfAttentionComputesTheScoresAgain) {
  const auto query = computed({2, 8, 256, 64});
  const auto seen = meter([&] { at::scaled_dot_product_attention(query, query, query); });
  const auto& core = base::devices()[0];
  EXPECT_DOUBLE_EQ(seen.times.backward, core.launch_seconds + 2.5 * seen.flops / core.peak[1]);
}

TEST(OperatorWork, BackwardOfARecurrentLayerIsTwice) {
  torch::nn::LSTM lstm(torch::nn::LSTMOptions(256, 256));
  const auto x = torch::ones({16, 32, 256});
  const auto seen = meter([&] { lstm(x); });
  const auto& core = base::devices()[0];
  EXPECT_NEAR(seen.times.backward / (seen.flops / core.peak[1]), 2, 0.1);
  EXPECT_NEAR(seen.times.weights / seen.times.backward, 0.5, 0.05);
}

}  // namespace
}  // namespace smp::partitioning
