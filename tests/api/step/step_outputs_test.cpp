// What every rank gets back from a step (docs/design.md, Arguments and outputs).
#include <torch/types.h>

#include "api/far_model.h"
#include "api/two_ranks.h"

namespace smp {
namespace step_outputs_test {

using at::Tensor;
using testing::ElementsAre;
using testing::HasSubstr;

struct Report {
  Tensor loss;
  std::string text;
};

TEST(StepOutputs, OfEveryKindReachEveryRank) {
  on_ranks(2, [] {
    const auto x = rows(4);
    auto number = smp::step([](Tensor own) { return static_cast<int>(own.size(0)); });
    EXPECT_THAT(number(x).outputs(), ElementsAre(2, 2));
    EXPECT_EQ(number(x).reduce_sum(), 4);
    EXPECT_EQ(number(x).reduce_mean(), 2);
    auto report = smp::step([](Tensor own) { return Report{own.sum(), "seen"}; });
    EXPECT_EQ(report(x).outputs().at(1).text, "seen");
    EXPECT_TRUE(at::equal(report(x).outputs().at(0).loss, x.narrow(0, 0, 2).sum()));
    auto table = smp::step([](Tensor own) {
      return std::map<std::string, double>{{"mean", own.mean().item<double>()}};
    });
    EXPECT_EQ(table(x).outputs().at(1).at("mean"), x.narrow(0, 2, 2).mean().item<double>());
    auto pair = smp::step([](Tensor own) { return std::pair(own, 3); });
    EXPECT_THAT(std::get<1>(pair(x)).outputs(), ElementsAre(3, 3));
  });
}

TEST(StepOutputs, AreStackedConcatenatedAndSummed) {
  on_ranks(2, [] {
    const auto x = rows(4);
    auto same = smp::step([](Tensor own) { return own; });
    const auto output = same(x);
    EXPECT_TRUE(at::equal(output.concat(), x));
    EXPECT_TRUE(at::equal(output.concat(1), at::cat({x.narrow(0, 0, 2), x.narrow(0, 2, 2)}, 1)));
    EXPECT_TRUE(at::equal(output.stack(), x.reshape({2, 2, 3})));
    EXPECT_TRUE(at::equal(output.reduce_sum(), x.narrow(0, 0, 2) + x.narrow(0, 2, 2)));
  });
}

/// bfloat16 has no 257.
TEST(StepOutputs, Of16BitsAreAddedUpInFloat32AndRoundedOnce) {
  constexpr int kMany = 300;
  const std::vector<double> weights(kMany, 1.0 / kMany);
  for (const auto type : {torch::kBFloat16, torch::kHalf}) {
    const StepOutput<Tensor> ones(std::vector<Tensor>(kMany, torch::ones({}, type)), weights, true);
    EXPECT_EQ(ones.reduce_sum().scalar_type(), type);
    EXPECT_EQ(ones.reduce_sum().item<float>(), 300);
    EXPECT_EQ(ones.reduce_mean().scalar_type(), type);
    EXPECT_EQ(ones.reduce_mean().item<float>(), 1);
    const auto tenth = torch::full({}, 1.1, type);
    const StepOutput<Tensor> tenths(std::vector<Tensor>(kMany, tenth), weights, true);
    EXPECT_EQ(tenths.reduce_mean().item<float>(), tenth.item<float>());
    EXPECT_EQ(tenths.reduce_sum().item<float>(),
              (tenth.to(torch::kFloat) * kMany).to(type).item<float>());
  }
}

TEST(StepOutputs, OfIntegersAndTruthValuesAreNotRounded) {
  const StepOutput<int> correct({1, 0, 0, 1}, {0.25, 0.25, 0.25, 0.25}, true);
  EXPECT_EQ(correct.reduce_mean(), 0.5);
  EXPECT_EQ(correct.reduce_sum(), 2);
  const StepOutput<bool> good({true, false, true, true}, {0.25, 0.25, 0.25, 0.25}, true);
  EXPECT_EQ(good.reduce_mean(), 0.75);
  EXPECT_EQ(good.reduce_sum(), 3);
  const StepOutput<float> loss({1.5F, 2.5F}, {0.5, 0.5}, true);
  static_assert(std::is_same_v<decltype(loss.reduce_mean()), float>);
  EXPECT_EQ(loss.reduce_mean(), 2);
}

TEST(StepOutputs, TensorsOfTruthValuesAreCounted) {
  const auto good = torch::tensor({true, false}), bad = torch::tensor({false, false});
  const StepOutput<Tensor> all({good, bad, good}, {0.5, 0.25, 0.25}, true);
  EXPECT_TRUE(at::equal(all.reduce_sum(), torch::tensor({2, 0})));
  EXPECT_TRUE(at::equal(all.reduce_mean(), torch::tensor({0.75F, 0.0F})));
}

TEST(StepOutputs, OfSeveralShapesAreNotAdded) {
  const StepOutput<Tensor> uneven({torch::ones({2}), torch::ones({1})}, {0.6, 0.4}, true);
  for (const bool mean : {false, true}) {
    EXPECT_THAT(
        refusal([&] { static_cast<void>(mean ? uneven.reduce_mean() : uneven.reduce_sum()); }),
        testing::AllOf(HasSubstr(mean ? "reduce_mean" : "reduce_sum"),
                       HasSubstr("microbatches 0 and 1"), HasSubstr("[2] and [1]"),
                       HasSubstr("concat()")));
  }
  EXPECT_EQ(uneven.concat().numel(), 3);
}

TEST(StepOutputs, CarryNoHistory) {
  on_ranks(2, [] {
    FarModel own;
    auto train = smp::step([&](Tensor x) {
      auto y = own.model(x);
      own.model.backward(y.sum());
      return y;
    });
    EXPECT_FALSE(train(rows(4)).concat().requires_grad());
  });
}

TEST(StepOutputs, StayOnTheFirstRankIfAskedFor) {
  on_ranks(2, [] {
    StepOptions options;
    options.broadcast_outputs = false;
    auto number = smp::step([] { return 1; }, options);
    const auto output = number();
    if (rank() == 0) {
      EXPECT_EQ(output.reduce_sum(), 2);
    } else {
      EXPECT_THAT(refusal<UsageError>([&] { output.reduce_sum(); }),
                  HasSubstr("broadcast_outputs"));
    }
  });
}

TEST(StepOutputs, MayBeNothing) {
  on_ranks(2, [] {
    int calls = 0;
    auto count = smp::step([&](Tensor) { ++calls; });
    count(rows(4));
    EXPECT_EQ(calls, rank() == 0 ? 2 : 0);
  });
}

}  // namespace step_outputs_test
}  // namespace smp
