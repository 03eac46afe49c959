// DistributedLinear equals torch::nn::Linear: constructor grid, shapes, refusals.
#include "smp/tp/distributed_linear.h"

#include <gmock/gmock.h>
#include <torch/nn/modules/linear.h>
#include <torch/serialize.h>

#include <sstream>

#include "smp/error.h"
#include "support/refusal.h"
#include "tp/layer_comparison.h"

namespace smp::tp {
namespace distributed_linear_test {

using testing::AllOf;
using testing::HasSubstr;

TEST(DistributedLinear, EqualsLinear) {
  for (const int size : {1, 2, 4}) {
    for (const bool bias : {false, true}) {
      for (const auto& shape : std::vector<std::vector<std::int64_t>>{
               {8}, {3, 8}, {1, 8}, {0, 8}, {2, 0, 8}, {2, 5, 8}, {2, 1, 3, 8}}) {
        const auto options = torch::nn::LinearOptions(8, 5).bias(bias);
        SCOPED_TRACE(testing::Message() << at::IntArrayRef(shape) << (bias ? " with" : " without"));
        expect_as_plain([&] { return torch::nn::Linear(options); },
                        [&] { return nn::DistributedLinear(options); }, numbers(size, shape),
                        1e-12);
      }
    }
  }
}

TEST(DistributedLinear, EqualsLinearIfOutputsAreSplit) {
  for (const int size : {1, 2, 4}) {
    for (const bool bias : {false, true}) {
      for (const auto& shape : std::vector<std::vector<std::int64_t>>{
               {5}, {3, 5}, {1, 5}, {0, 5}, {2, 0, 5}, {2, 3, 5}, {2, 1, 3, 5}}) {
        const auto options = torch::nn::LinearOptions(5, 8).bias(bias);
        SCOPED_TRACE(testing::Message() << at::IntArrayRef(shape) << (bias ? " with" : " without"));
        expect_as_plain([&] { return torch::nn::Linear(options); },
                        [&] { return nn::DistributedLinear(options, nn::LinearSplit::kOutputs); },
                        numbers(size, shape), 1e-12);
      }
    }
  }
}

TEST(DistributedLinear, TakesTensorsThatAreNotContiguous) {
  auto samples = numbers(2, {8, 3, 2});
  for (auto& tensor : samples) tensor = tensor.permute({2, 1, 0});
  for (const auto split : {nn::LinearSplit::kInputs, nn::LinearSplit::kOutputs}) {
    expect_as_plain([] { return torch::nn::Linear(8, 4); },
                    [&] { return nn::DistributedLinear(8, 4, split); }, samples, 1e-12);
  }
  auto every_other = numbers(2, {16});
  for (auto& tensor : every_other) tensor = tensor.slice(0, 0, std::nullopt, 2);
  expect_as_plain([] { return torch::nn::Linear(8, 4); },
                  [] { return nn::DistributedLinear(8, 4); }, every_other, 1e-12);
}

/// Bytes that rank 0 of 4 sends in forward and in backward.
std::pair<std::uint64_t, std::uint64_t> sent_by(nn::LinearSplit split, Batches batches) {
  constexpr int kRanks = 4;
  d2d::SimulatedJob job(kRanks);
  std::uint64_t forward = 0, both = 0;
  const auto bytes = [&] { return job.channel(0).counters().tensor_bytes_sent; };
  on_group(
      job, kRanks,
      [&](int rank) {
        nn::DistributedLinear layer(8, 4, split);
        layer->to(at::kDouble);
        const auto x = at::ones({400, 8}, at::kDouble).requires_grad_();
        const auto y = layer(x);
        if (rank == 0) forward = bytes();
        backward(y, at::ones_like(y));
        if (rank == 0) both = bytes();
      },
      batches);
  return {forward, both - forward};
}

/// T = 4, B = N = 400, I = 8, O = 4; backward of an all-gather sends what the all-gather does.
TEST(DistributedLinear, SendsWhatTheFormulasSay) {
  const std::uint64_t rows = 400 * sizeof(double);
  using Sent = std::pair<std::uint64_t, std::uint64_t>;
  const auto of_inputs = rows * (3 * 8 / 4 + 3 * 4), of_outputs = rows * (3 * 8 + 3 * 4 / 4);
  const auto of_sums = rows * 2 * 3 * 4 / 4, of_gradient = rows * 2 * 3 * 8 / 4;
  // A reduce-scatter of T·B rows sends (T-1)·B of them, and one of B rows (T-1)/T·B.
  EXPECT_EQ(sent_by(nn::LinearSplit::kInputs, Batches::kOwn), Sent(of_inputs, of_inputs));
  EXPECT_EQ(sent_by(nn::LinearSplit::kOutputs, Batches::kOwn), Sent(of_outputs, of_outputs));
  EXPECT_EQ(sent_by(nn::LinearSplit::kInputs, Batches::kPrescaled),
            Sent(of_sums, rows * 3 * 8 / 4));
  EXPECT_EQ(sent_by(nn::LinearSplit::kOutputs, Batches::kPrescaled),
            Sent(rows * 3 * 4 / 4, of_gradient));
}

TEST(DistributedLinear, RefusesSizesThatDoNotFit) {
  d2d::SimulatedJob job(4);
  on_group(job, 4, [](int) {
    EXPECT_THAT(
        refusal<UsageError>([] { nn::DistributedLinear(6, 8); }),
        AllOf(HasSubstr("DistributedLinear"), HasSubstr("'weight', shape [8, 6]"),
              HasSubstr("dimension 1 for 4 tensor-parallel ranks"), HasSubstr("choose a size")));
    EXPECT_THAT(refusal<UsageError>([] { nn::DistributedLinear(8, 6, nn::LinearSplit::kOutputs); }),
                AllOf(HasSubstr("'weight', shape [6, 8]"), HasSubstr("dimension 0 for 4")));
    nn::DistributedLinear layer(8, 3);
    EXPECT_THAT(
        refusal<UsageError>([&] {
          layer(at::ones({2, 4}));
        }),
        AllOf(HasSubstr("input is [2, 4], expected [.., 8]"), HasSubstr("check in_features")));
    EXPECT_THAT(refusal<UsageError>([&] { layer(at::ones({})); }), HasSubstr("input is [], "));
    EXPECT_THAT(refusal<UsageError>([&] { layer(at::ones({4})); }), HasSubstr("input is [4], "));
    EXPECT_THROW(layer(at::ones({2, 8}, at::kLong)), c10::Error) << "as torch::nn::Linear does";
  });
}

TEST(DistributedLinear, IsNotWrittenByARankThatHasAPartOfIt) {
  for (const int size : {1, 2}) {
    d2d::SimulatedJob job(size);
    on_group(job, size, [size](int) {
      nn::DistributedLinear layer(8, 4);
      layer->smp_place.owner = PpRank(0);
      std::ostringstream file;
      EXPECT_THAT(refusal<UnsupportedError>([&] { torch::save(layer, file); }),
                  HasSubstr(size == 1 ? "accepted" : "no longer holds all of its parameters"));
    });
  }
}

TEST(DistributedLinear, NeedsASession) {
  EXPECT_THAT(refusal<UsageError>([] { nn::DistributedLinear(4, 4); }),
              HasSubstr("call smp::init first"));
}

TEST(DistributedLinear, PrintsItself) {
  d2d::SimulatedJob job(1);
  on_group(job, 1, [](int) {
    std::ostringstream text;
    text << nn::DistributedLinear(4, 3);
    EXPECT_THAT(text.str(), HasSubstr("DistributedLinear(in_features=4, out_features=3"));
    text << nn::DistributedLinear(4, 3, nn::LinearSplit::kOutputs);
    EXPECT_THAT(text.str(), HasSubstr("split=outputs)"));
  });
}

}  // namespace distributed_linear_test
}  // namespace smp::tp
