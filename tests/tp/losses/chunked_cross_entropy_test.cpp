// Cross entropy of products that are made for some rows at a time equals that of whole scores:
// values, gradients, classes that pad, 16 bits; and no tensor is as large as the scores.
#include "smp/tp/chunked_cross_entropy.h"

#include <ATen/autocast_mode.h>
#include <gmock/gmock.h>
#include <torch/torch.h>

#include "smp/error.h"
#include "smp/tp/split_cross_entropy.h"
#include "support/refusal.h"
#include "tp/layer_comparison.h"

namespace smp::tp {
namespace chunked_cross_entropy_test {

using testing::HasSubstr;

constexpr std::int64_t kWidth = 3, kRowsOfRank = 5;

/// Hidden states of all ranks, the table of all classes, and a label for each row.
struct Case {
  Case(int size, std::int64_t classes, at::ScalarType dtype = at::kDouble)
      : hidden(numbers(1, {size * 2, kRowsOfRank, kWidth})[0].to(dtype)),
        table((numbers(2, {classes, kWidth})[1] * 3).to(dtype)),
        labels(whole_numbers(1, {size * 2, kRowsOfRank}, classes)[0]) {
    labels.view(-1).slice(0, 2, std::nullopt, 5).fill_(-100);
    hidden.requires_grad_();
    table.requires_grad_();
  }
  at::Tensor hidden, table, labels;
};

at::Tensor plain(const Case& of, int size) {
  const auto losses = torch::nn::functional::cross_entropy(
                          at::linear(of.hidden, of.table).flatten(0, 1), of.labels.flatten(),
                          torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kNone))
                          .view(of.labels.sizes());
  std::vector<at::Tensor> weights;
  const auto parts = losses.chunk(size);
  for (int rank = 0; rank < size; ++rank) {
    weights.push_back(weights_like(parts[static_cast<std::size_t>(rank)], rank));
  }
  (losses * at::cat(weights)).sum().backward();
  return losses.detach();
}

void expect_as_plain_losses(int size, std::int64_t classes, std::int64_t most_scores,
                            at::ScalarType dtype, double tolerance) {
  SCOPED_TRACE(testing::Message() << size << " ranks, " << classes << " classes, " << most_scores
                                  << " scores at once, " << dtype);
  const Case reference(size, classes, dtype);
  const auto losses = plain(reference, size);
  const auto held = (classes + size - 1) / size;
  d2d::SimulatedJob job(size, 4);
  at::Tensor of_hidden = at::zeros_like(losses.unsqueeze(-1).expand({-1, -1, kWidth}));
  on_group(job, size, [&](int rank) {
    Case own(size, classes, dtype);
    auto table = part_of(own.table.detach(), 0, held, rank).requires_grad_();
    ChunkedCrossEntropyOptions options;
    options.num_classes = classes;
    options.most_scores = most_scores;
    const auto ours = chunked_cross_entropy_for_tp(own.hidden, table, own.labels, options);
    expect_near(ours.detach(), losses.chunk(size)[static_cast<std::size_t>(rank)], tolerance,
                "losses");
    backward(ours, weights_like(ours, rank));
    of_hidden += own.hidden.grad();
    expect_near(table.grad(), part_of(reference.table.grad(), 0, held, rank), tolerance,
                "gradient of the table");
    expect_zero_padding(table.grad(), {0, classes}, rank, "padding");
  });
  expect_near(of_hidden, reference.hidden.grad(), tolerance, "gradient of the rows");
}

TEST(ChunkedCrossEntropy, EqualsThatOfWholeScores) {
  for (const int size : {1, 2, 4}) {
    for (const std::int64_t classes : {8, 7, 5, 3}) {
      for (const std::int64_t most : {1, 6, 1 << 20}) {
        expect_as_plain_losses(size, classes, most, at::kDouble, 1e-12);
      }
    }
    expect_as_plain_losses(size, 7, 6, at::kFloat, 1e-5);
    expect_as_plain_losses(size, 7, 6, at::kBFloat16, 0.05);
  }
}

/// The most elements that any operator's result has.
class LargestResult {
 public:
  LargestResult() {
    largest() = 0;
    handle_ = at::addThreadLocalCallback(
        at::RecordFunctionCallback([](const at::RecordFunction&)
                                       -> std::unique_ptr<at::ObserverContext> { return nullptr; },
                                   [](const at::RecordFunction& call, at::ObserverContext*) {
                                     for (const auto& output : call.outputs()) {
                                       if (output.isTensor() && output.toTensor().defined()) {
                                         largest() = std::max(largest(), output.toTensor().numel());
                                       }
                                     }
                                   })
            .needsOutputs(true)
            .scopes({at::RecordScope::FUNCTION}));
  }
  ~LargestResult() { at::removeCallback(handle_); }
  LargestResult(const LargestResult&) = delete;
  LargestResult& operator=(const LargestResult&) = delete;
  static std::int64_t& largest() {
    static std::int64_t most = 0;
    return most;
  }

 private:
  at::CallbackHandle handle_;
};

TEST(ChunkedCrossEntropy, NeverHasTheScoresOfAllRows) {
  constexpr std::int64_t kRows = 64, kClasses = 40, kMost = 4 * kClasses;
  const auto hidden = numbers(1, {kRows, 2})[0].requires_grad_();
  const auto table = numbers(1, {kClasses, 2})[0].requires_grad_();
  const auto labels = whole_numbers(1, {kRows}, kClasses)[0];
  const auto largest_of = [&](bool chunked) {
    d2d::SimulatedJob job(1, 4);
    std::int64_t most = 0;
    on_group(job, 1, [&](int) {
      const LargestResult watch;
      ChunkedCrossEntropyOptions options;
      options.most_scores = kMost;
      const auto losses = chunked ? chunked_cross_entropy_for_tp(hidden, table, labels, options)
                                  : split_cross_entropy_for_tp(at::linear(hidden, table), labels);
      backward(losses, at::ones_like(losses));
      most = watch.largest();
    });
    return most;
  };
  EXPECT_EQ(largest_of(false), kRows * kClasses) << "what this watch sees";
  EXPECT_EQ(largest_of(true), kMost);
}

/// Autocast leaves doubles as they are, and makes 16 bits of other numbers.
TEST(ChunkedCrossEntropy, MultipliesUnderAutocastAsLinearDoes) {
  d2d::SimulatedJob job(1, 4);
  on_group(job, 1, [](int) {
    for (const auto dtype : {at::kDouble, at::kFloat}) {
      const Case of(1, 7, dtype);
      at::autocast::set_autocast_enabled(at::kCPU, true);
      const auto whole = split_cross_entropy_for_tp(at::linear(of.hidden, of.table), of.labels);
      const auto ours = chunked_cross_entropy_for_tp(of.hidden, of.table, of.labels);
      at::autocast::set_autocast_enabled(at::kCPU, false);
      at::autocast::clear_cache();
      EXPECT_EQ(ours.scalar_type(), whole.scalar_type());
      expect_near(ours.detach().to(at::kDouble), whole.detach().to(at::kDouble), 1e-2, "losses");
    }
  });
}

TEST(ChunkedCrossEntropy, RefusesWhatDoesNotFit) {
  d2d::SimulatedJob job(1, 4);
  on_group(job, 1, [](int) {
    const auto rows = at::ones({2, 3}), table = at::ones({4, 3});
    const auto labels = at::zeros({2}, at::kLong);
    const auto refused = [&](const at::Tensor& hidden, const at::Tensor& of_rows,
                             std::int64_t most = 8) {
      ChunkedCrossEntropyOptions options;
      options.most_scores = most;
      return refusal<UsageError>(
          [&] { chunked_cross_entropy_for_tp(hidden, table, of_rows, options); });
    };
    EXPECT_THAT(refused(at::ones({2, 5}), labels),
                HasSubstr("hidden is [2, 5] and the table [4, 3]"));
    EXPECT_THAT(refused(rows, labels + 4), HasSubstr("label 4 is none of the 4 classes"));
    EXPECT_THAT(refused(rows, labels.narrow(0, 0, 1)), HasSubstr("rows are [2] and labels [1]"));
    EXPECT_THAT(refused(rows, labels, 0), HasSubstr("most_scores is 0"));
  });
}

/// Scores that are made again have no second derivatives, and no gradient is made for a frozen
/// table.
TEST(ChunkedCrossEntropy, RefusesGradientsWithAGraphAndLeavesAFrozenTable) {
  d2d::SimulatedJob job(1, 4);
  on_group(job, 1, [](int) {
    const auto rows = numbers(1, {2, kWidth})[0].requires_grad_();
    const auto table = numbers(2, {4, kWidth})[1];
    const auto loss = chunked_cross_entropy_for_tp(rows, table, at::zeros({2}, at::kLong)).sum();
    EXPECT_THAT(refusal<UnsupportedError>(
                    [&] { (void)torch::autograd::grad({loss}, {rows}, {}, true, true); }),
                HasSubstr("create_graph"));
    const auto whole = torch::nn::functional::cross_entropy(
        at::linear(rows, table), at::zeros({2}, at::kLong),
        torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kSum));
    EXPECT_TRUE(at::allclose(torch::autograd::grad({loss}, {rows})[0],
                             torch::autograd::grad({whole}, {rows})[0], 1e-12, 1e-12));
  });
}

}  // namespace chunked_cross_entropy_test
}  // namespace smp::tp
