// Cross entropy over split logits equals torch::cross_entropy over whole ones: values, gradients,
// bytes, refusals.
#include "smp/tp/split_cross_entropy.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include <limits>

#include "smp/error.h"
#include "support/refusal.h"
#include "tp/layer_comparison.h"

namespace smp::tp {
namespace split_cross_entropy_test {

using testing::AllOf;
using testing::HasSubstr;

constexpr std::int64_t kClasses = 8;

/// Rows of all ranks, [T·B, ..], with every fifth ignored.
struct Case {
  Case(int size, std::vector<std::int64_t> rows, double scale) {
    rows[0] *= size;
    labels = whole_numbers(1, rows, kClasses)[0];
    labels.view(-1).slice(0, 2, std::nullopt, 5).fill_(-100);
    rows.push_back(kClasses);
    logits = numbers(1, rows)[0] * scale;
  }
  at::Tensor logits, labels;
};

/// Whole logits with the gradient of what all ranks weigh their rows by, and the losses.
std::pair<at::Tensor, at::Tensor> plain(const Case& all, int size) {
  auto logits = all.logits.clone().requires_grad_();
  const auto losses = torch::nn::functional::cross_entropy(
                          logits.view({-1, kClasses}), all.labels.view(-1),
                          torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kNone))
                          .view(all.labels.sizes());
  std::vector<at::Tensor> weights;
  for (int rank = 0; rank < size; ++rank) {
    weights.push_back(weights_like(losses.chunk(size)[static_cast<std::size_t>(rank)], rank));
  }
  (losses * at::cat(weights)).sum().backward();
  return {logits, losses.detach()};
}

TEST(SplitCrossEntropy, EqualsThatOfWholeLogits) {
  for (const int size : {1, 2, 4}) {
    for (const auto& rows : std::vector<std::vector<std::int64_t>>{{3}, {2, 5}, {1, 2, 3}}) {
      for (const double scale : {1., 2000.}) {  // whose exponential is infinite
        const Case all(size, rows, scale);
        const auto [logits, losses] = plain(all, size);
        d2d::SimulatedJob job(size, 4);
        on_group(job, size, [&, &logits = logits, &losses = losses](int rank) {
          SCOPED_TRACE(testing::Message() << "rank " << rank << " of " << size << ", "
                                          << at::IntArrayRef(rows) << ", scale " << scale);
          const auto place = static_cast<std::size_t>(rank);
          auto own = all.logits.chunk(size, -1)[place].clone().requires_grad_();
          const auto ours = split_cross_entropy_for_tp(own, all.labels);
          expect_near(ours.detach(), losses.chunk(size)[place], 1e-12, "losses");
          backward(ours, weights_like(ours, rank));
          expect_near(own.grad(), logits.grad().chunk(size, -1)[place], 1e-12, "gradient");
        });
      }
    }
  }
}

/// What pads has any value: 8 classes of which 5 or 6 count, so that of 4 ranks one has no class.
TEST(SplitCrossEntropy, LeavesOutClassesThatPad) {
  for (const int size : {2, 4}) {
    for (const std::int64_t classes : {5, 6, 8}) {
      const Case all(size, {2, 5}, 3);
      const auto labels = at::where(all.labels < 0, all.labels, all.labels.remainder(classes));
      auto logits = all.logits.clone().requires_grad_();
      const auto real = logits.narrow(-1, 0, classes);
      const auto losses =
          torch::nn::functional::cross_entropy(
              real.flatten(0, -2), labels.view(-1),
              torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kNone))
              .view(labels.sizes());
      losses.sum().backward();
      d2d::SimulatedJob job(size, 4);
      on_group(job, size, [&](int rank) {
        const auto place = static_cast<std::size_t>(rank);
        auto own = all.logits.chunk(size, -1)[place].clone();
        const auto pads =
            std::clamp<std::int64_t>((rank + 1) * own.size(-1) - classes, 0, own.size(-1));
        own.narrow(-1, own.size(-1) - pads, pads).fill_(1e9);
        own.requires_grad_();
        const auto ours = split_cross_entropy_for_tp(own, labels, -100, classes);
        expect_near(ours.detach(), losses.detach().chunk(size)[place], 1e-12, "losses");
        backward(ours, at::ones_like(ours));
        expect_near(own.grad(), logits.grad().chunk(size, -1)[place], 1e-12, "gradient");
      });
    }
  }
}

/// Of rows that are short types: those of sums in float, rounded once.
TEST(SplitCrossEntropy, AddsUpHalvesInFloat) {
  constexpr std::int64_t kMany = 512, kRowsOfAll = 64;
  for (const auto dtype : {at::kBFloat16, at::kHalf}) {
    for (const int size : {1, 2, 4}) {
      SCOPED_TRACE(testing::Message() << size << " ranks, " << dtype);
      const auto half = (numbers(3, {kRowsOfAll, kMany})[0] * 4).to(dtype);
      const auto labels = whole_numbers(1, {kRowsOfAll}, kMany)[0];
      auto logits = half.to(at::kFloat).requires_grad_();
      const auto losses = torch::nn::functional::cross_entropy(
          logits, labels, torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kNone));
      losses.sum().backward();
      const double unit = dtype == at::kHalf ? 1. / 1024 : 1. / 128;  // relative, of a rounding
      d2d::SimulatedJob job(size, 4);
      on_group(job, size, [&](int rank) {
        const auto place = static_cast<std::size_t>(rank);
        auto own = half.chunk(size, -1)[place].clone().requires_grad_();
        const auto ours = split_cross_entropy_for_tp(own, labels);
        ASSERT_EQ(ours.scalar_type(), dtype);
        const auto expected = losses.detach().chunk(size)[place];
        const auto error = ((ours.detach().to(at::kFloat) - expected) / expected).abs();
        EXPECT_LE(error.max().item<double>(), 0.51 * unit);
        backward(ours, at::ones_like(ours));
        const auto wanted = logits.grad().chunk(size, -1)[place];
        const auto off = (own.grad().to(at::kFloat) - wanted).abs();
        EXPECT_LE((off - 0.51 * unit * wanted.abs()).max().item<double>(), 1e-6);
      });
    }
  }
}

/// As a mask of classes makes it: of the first row half the classes, which one of two ranks has;
/// of the second all but the label.
TEST(SplitCrossEntropy, TakesClassesWhoseScoreIsMinusInfinity) {
  for (const int size : {1, 2, 4}) {
    Case all(size, {4}, 3);
    all.labels[0] = 6;
    all.labels[1] = 1;
    const double nothing = -std::numeric_limits<double>::infinity();
    all.logits[0].narrow(0, 0, 4).fill_(nothing);
    all.logits[1].fill_(nothing)[1] = 2;
    const auto [logits, losses] = plain(all, size);
    ASSERT_TRUE(logits.grad().isfinite().all().item<bool>());
    d2d::SimulatedJob job(size, 4);
    on_group(job, size, [&, &logits = logits, &losses = losses](int rank) {
      SCOPED_TRACE(testing::Message() << "rank " << rank << " of " << size);
      const auto place = static_cast<std::size_t>(rank);
      auto own = all.logits.chunk(size, -1)[place].clone().requires_grad_();
      const auto ours = split_cross_entropy_for_tp(own, all.labels);
      expect_near(ours.detach(), losses.chunk(size)[place], 1e-12, "losses");
      backward(ours, weights_like(ours, rank));
      EXPECT_TRUE(own.grad().isfinite().all().item<bool>()) << own.grad();
      expect_near(own.grad(), logits.grad().chunk(size, -1)[place], 1e-12, "gradient");
    });
  }
}

/// As torch::cross_entropy takes them: [V] with a label of no dimensions.
TEST(SplitCrossEntropy, TakesOneRowThatAllRanksHave) {
  for (const int size : {1, 2}) {
    for (const std::int64_t label : {0, 6, -100}) {
      auto logits = numbers(1, {kClasses})[0].requires_grad_();
      const auto labels = at::scalar_tensor(label, at::kLong);
      const auto loss = at::cross_entropy_loss(logits, labels, {}, at::Reduction::None);
      loss.backward();
      d2d::SimulatedJob job(size, 4);
      on_group(
          job, size,
          [&](int rank) {
            const auto place = static_cast<std::size_t>(rank);
            auto own = logits.detach().chunk(size, -1)[place].clone().requires_grad_();
            const auto ours = split_cross_entropy_for_tp(own, labels);
            expect_near(ours.detach(), loss.detach(), 1e-12, "loss");
            backward(ours, at::ones_like(ours));
            expect_near(own.grad(), logits.grad().chunk(size, -1)[place], 1e-12, "gradient");
          },
          Batches::kPrescaled);
    }
  }
}

TEST(SplitCrossEntropy, TakesLabelsOfBytes) {
  d2d::SimulatedJob job(2);
  on_group(job, 2, [](int rank) {
    const auto logits = numbers(2, {4, 3})[static_cast<std::size_t>(rank)];
    const auto labels = at::tensor({0, 5, 3, 2}, at::kLong);
    expect_near(split_cross_entropy_for_tp(logits, labels.to(at::kByte)),
                split_cross_entropy_for_tp(logits, labels), 0, "losses");
  });
}

TEST(SplitCrossEntropy, SendsTwoNumbersARow) {
  const int size = 4;
  const Case all(size, {6}, 1);
  d2d::SimulatedJob job(size);
  std::uint64_t forward = 0, both = 0;
  const auto bytes = [&] { return job.channel(0).counters().tensor_bytes_sent; };
  on_group(job, size, [&](int rank) {
    auto own = all.logits.chunk(size, -1)[static_cast<std::size_t>(rank)].clone().requires_grad_();
    const auto losses = split_cross_entropy_for_tp(own, all.labels);
    if (rank == 0) forward = bytes();
    backward(losses, at::ones_like(losses));
    if (rank == 0) both = bytes();
  });
  EXPECT_EQ(forward, 2u * (size - 1) * 6 * sizeof(double));
  EXPECT_EQ(both, 2 * forward);
}

TEST(SplitCrossEntropy, RefusesWhatDoesNotBelongTogether) {
  d2d::SimulatedJob job(2);
  on_group(job, 2, [](int) {
    const auto logits = at::zeros({4, 3});
    const auto refused = [&](const at::Tensor& labels, std::int64_t ignored = -100) {
      return refusal<UsageError>([&] { split_cross_entropy_for_tp(logits, labels, ignored); });
    };
    EXPECT_THAT(refused(at::zeros({3}, at::kLong)),
                AllOf(HasSubstr("rows are [4] and labels [3]"), HasSubstr("[T*B, ..]")));
    EXPECT_THAT(refused(at::zeros({4})), HasSubstr("labels of type"));
    EXPECT_THAT(refused(at::zeros({4}, at::kInt)),
                HasSubstr("labels of type Int; expected torch::kLong or torch::kByte"));
    EXPECT_THAT(refusal<UsageError>(
                    [] { split_cross_entropy_for_tp(at::zeros({3}), at::zeros({}, at::kLong)); }),
                HasSubstr("logits are [3], but 2 ranks with samples of their own have a row each"));
    EXPECT_THAT(refusal<UsageError>(
                    [] { split_cross_entropy_for_tp(at::zeros({}), at::zeros({}, at::kLong)); }),
                HasSubstr("logits without dimensions"));
    EXPECT_THAT(refused(at::full({4}, 6, at::kLong)),
                HasSubstr("label 6 is none of the 6 classes, and not ignore_index"));
    EXPECT_THAT(refused(at::full({4}, -100, at::kLong), -1), HasSubstr("label -100"));
    split_cross_entropy_for_tp(logits, at::full({4}, 5, at::kLong));
    const auto of_classes = [&](std::int64_t classes) {
      return refusal<UsageError>(
          [&] { split_cross_entropy_for_tp(logits, at::full({4}, 4, at::kLong), -100, classes); });
    };
    EXPECT_THAT(of_classes(7), HasSubstr("2 ranks with 3 classes each have not the 7"));
    EXPECT_THAT(of_classes(4), HasSubstr("label 4 is none of the 4 classes"));
  });
}

}  // namespace split_cross_entropy_test
}  // namespace smp::tp
