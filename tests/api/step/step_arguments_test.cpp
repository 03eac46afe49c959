// What a step does with its arguments: what is split and how, what is passed whole, and batches
// that do not divide (paper §4.3).
#include <torch/data/example.h>
#include <torch/types.h>

#include <functional>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "api/far_model.h"
#include "api/two_ranks.h"

namespace smp {
namespace step_arguments_test {

using at::Tensor;
using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::int64_t> lengths(const std::vector<Tensor>& tensors, int axis = 0) {
  std::vector<std::int64_t> result;
  for (const auto& tensor : tensors) result.push_back(tensor.size(axis));
  return result;
}

// ---- splitting ---------------------------------------------------------------------------------

struct Batch {
  Tensor tokens;
  std::optional<Tensor> mask;
  std::map<std::string, Tensor> extra;
  std::vector<std::tuple<Tensor, int>> parts;
};

TEST(StepArguments, TensorsAreSplitWhereverTheyAre) {
  on_ranks(2, [] {
    const auto x = rows(4);
    const Batch batch{x, x + 10, {{"a", x + 20}, {"b", {}}}, {{x + 30, 7}}};
    auto look = smp::step([](Batch own, std::pair<Tensor, std::string> other) {
      EXPECT_EQ(own.tokens.size(0), 2);
      EXPECT_FALSE(own.extra.at("b").defined());
      EXPECT_EQ(std::get<1>(own.parts.at(0)), 7);
      EXPECT_EQ(other.second, "same");
      return std::tuple(own.tokens, *own.mask, own.extra.at("a"), std::get<0>(own.parts[0]),
                        other.first);
    });
    const auto seen = look(batch, std::pair(x + 40, std::string("same")));
    EXPECT_TRUE(at::equal(std::get<0>(seen).concat(), x));
    EXPECT_TRUE(at::equal(std::get<1>(seen).concat(), x + 10));
    EXPECT_TRUE(at::equal(std::get<2>(seen).concat(), x + 20));
    EXPECT_TRUE(at::equal(std::get<3>(seen).concat(), x + 30));
    EXPECT_TRUE(at::equal(std::get<4>(seen).concat(), x + 40));
  });
}

TEST(StepArguments, AnArgumentHasItsOwnAxis) {
  on_ranks(1, [] {
    StepOptions options;
    options.split_axes = {{1, 1}, {2, -1}};
    auto look =
        smp::step([](Tensor x, Tensor y, Tensor z) { return std::tuple(x, y, z); }, options);
    const auto [x, y, z] = look(rows(4), rows(2, 4), rows(5, 4));
    EXPECT_THAT(lengths(x.outputs(), 0), Each(2));
    EXPECT_THAT(lengths(y.outputs(), 1), Each(2));
    EXPECT_TRUE(at::equal(z.concat(1), rows(5, 4)));
  });
}

TEST(StepArguments, AnArgumentThatIsNotSplitComesWhole) {
  on_ranks(1, [] {
    StepOptions options;
    options.non_split = {1};
    auto look = smp::step([](Tensor x, Tensor whole) { return std::tuple(x, whole); }, options);
    const auto [x, whole] = look(rows(4), rows(3));
    EXPECT_THAT(lengths(x.outputs()), Each(2));
    EXPECT_THAT(lengths(whole.outputs()), Each(3));
  });
}

TEST(StepArguments, ValuesOfOtherTypesArePassedAsTheyAre) {
  on_ranks(2, [] {
    int calls = 0;
    struct Opaque {
      int* counter;
    } opaque{&calls};
    auto look = smp::step([](Tensor, Opaque& own) { ++*own.counter; });
    look(rows(4), opaque);
    EXPECT_EQ(calls, rank() == 0 ? 2 : 0);
  });
}

TEST(StepArguments, WithoutArgumentsEveryMicrobatchRuns) {
  on_ranks(2, [] {
    auto number = smp::step([] { return current_microbatch(); });
    const auto output = number();
    EXPECT_THAT(output.outputs(), ElementsAre(0, 1));
    EXPECT_THAT(output.weights(), ElementsAre(0.5, 0.5));
    EXPECT_EQ(current_microbatch(), -1);
  });
}

TEST(StepArguments, OnlyThoseOfRankZeroAreRead) {
  on_ranks(2, [] {
    auto look = smp::step([](Tensor x) { return x; });
    const auto output = look(rank() == 0 ? rows(4) : Tensor());
    EXPECT_TRUE(at::equal(output.concat(), rows(4)));
  });
}

// ---- batches that do not divide ----------------------------------------------------------------

TEST(StepArguments, AnUnevenBatchIsWeightedByItsRows) {
  on_ranks(
      2,
      [] {
        auto mean = smp::step([](Tensor x) { return std::tuple(x, x.mean()); });
        const auto [x, loss] = mean(rows(7));
        EXPECT_THAT(lengths(x.outputs()), ElementsAre(3, 2, 2));
        EXPECT_THAT(loss.weights(), ElementsAre(3.0 / 7, 2.0 / 7, 2.0 / 7));
        EXPECT_TRUE(at::allclose(loss.reduce_mean(), rows(7).mean(), 1e-12, 1e-14));
        EXPECT_TRUE(at::equal(x.concat(), rows(7)));
      },
      3);
}

TEST(StepArguments, FewerRowsMakeFewerMicrobatches) {
  on_ranks(
      2,
      [] {
        auto look = smp::step([](Tensor x) { return x; });
        EXPECT_THAT(lengths(look(rows(2)).outputs()), ElementsAre(1, 1));
        EXPECT_THAT(lengths(look(rows(4)).outputs()), ElementsAre(1, 1, 1, 1));
      },
      4);
}

TEST(StepArguments, RowsThatDifferAreRefusedOnEveryRank) {
  on_ranks(2, [] {
    auto look = smp::step([](Tensor, Tensor) {});
    EXPECT_THAT(refused_step<UsageError>(0, [&] { look(rows(4), rows(3)); }),
                AllOf(HasSubstr("argument 1 of the step has 3 rows"), HasSubstr("argument 0 has 4"),
                      HasSubstr("non_split")));
    look(rows(4), rows(4));
  });
}

TEST(StepArguments, WhatCannotBeSplitIsRefused) {
  on_ranks(2, [] {
    auto look = smp::step([](Tensor) {});
    EXPECT_THAT(refused_step<UsageError>(0, [&] { look(torch::ones({})); }),
                AllOf(HasSubstr("argument 0"), HasSubstr("along axis 0"), HasSubstr("non_split")));
    EXPECT_THAT(refused_step<UsageError>(0, [&] { look(rows(0)); }), HasSubstr("no rows"));
    StepOptions options;
    options.split_axes = {{0, 2}};
    auto beyond = smp::step([](Tensor) {}, options);
    EXPECT_THAT(refused_step<UsageError>(0, [&] { beyond(rows(4)); }),
                AllOf(HasSubstr("[4, 3]"), HasSubstr("along axis 2")));
    look(rows(4));
  });
}

// ---- lists -------------------------------------------------------------------------------------

TEST(StepArguments, AListOfRowsIsSplitLikeThem) {
  for (const int ranks : {1, 2}) {
    on_ranks(
        ranks,
        [] {
          FarModel own;
          auto weigh = smp::step([&](Tensor x, std::vector<double> weights,
                                     std::vector<std::string> names) {
            EXPECT_EQ(weights.size(), names.size());
            auto y = own.model(x).sum(1);
            for (std::int64_t i = 0; i < x.size(0); ++i) {
              y = y.index_put({torch::tensor(i)}, y[i] * weights.at(static_cast<std::size_t>(i)));
            }
            own.model.backward(y.sum());
            return std::tuple(torch::tensor(weights), names);
          });
          const std::vector<double> weights{1, 2, 3, 4, 5};
          const std::vector<std::string> names{"a", "b", "c", "d", "e"};
          const auto [seen, named] = weigh(rows(5), weights, names);
          EXPECT_TRUE(at::equal(seen.concat(), torch::tensor(weights)));
          EXPECT_THAT(named.outputs(),
                      ElementsAre(ElementsAre("a", "b", "c"), ElementsAre("d", "e")));
        },
        2);
  }
}

/// Each image is a tensor of its own size, and a leaf outside of the step.
TEST(StepArguments, ImagesOfSeveralSizesHaveTheirGradients) {
  const auto image = [](int i) { return (rows(2 + i) + i).detach().requires_grad_(); };
  const auto loss_of = [](auto& net, const Tensor& own, double weight) {
    return net(own).pow(2).mean() * weight;
  };
  std::vector<Tensor> leaves, expected;
  for (int i = 0; i < 5; ++i) leaves.push_back(image(i));
  auto net = FarModel::make();
  for (int i = 0; i < 5; ++i) (loss_of(net, leaves[i] * 2, i + 1) / 5).backward();
  for (const auto& leaf : leaves) expected.push_back(leaf.grad());
  for (const int ranks : {1, 2}) {
    on_ranks(
        ranks,
        [&] {
          FarModel own;
          std::vector<Tensor> ours, images;
          std::vector<double> weights;
          for (int i = 0; i < 5; ++i) {
            ours.push_back(image(i));
            images.push_back(ours.back() * 2);
            weights.push_back(i + 1);
          }
          StepOptions options;
          options.split_entries = {0};
          auto train = smp::step(
              [&](std::vector<Tensor> some, std::vector<double> factors) {
                auto loss = torch::zeros({}, torch::kDouble);
                for (std::size_t i = 0; i < some.size(); ++i) {
                  loss = loss + loss_of(own.model, some[i], factors.at(i));
                }
                loss = loss / static_cast<double>(some.size());
                own.model.backward(loss);
                return static_cast<int>(some.size());
              },
              options);
          EXPECT_THAT(train(images, weights).outputs(), ElementsAre(2, 2, 1));
          if (rank() != 0) return;
          for (std::size_t i = 0; i < ours.size(); ++i) {
            EXPECT_TRUE(at::allclose(ours[i].grad(), expected[i], 1e-12, 1e-14)) << i;
          }
        },
        3);
  }
}

TEST(StepArguments, AListThatMayBeMeantInTwoWaysIsRefusedOnEveryRank) {
  on_ranks(2, [] {
    auto look = smp::step([](Tensor, std::vector<Tensor>) {});
    const std::vector<Tensor> list{rows(3), rows(3), rows(3)};
    EXPECT_THAT(refused_step<UsageError>(0, [&] { look(rows(3), list); }),
                AllOf(HasSubstr("argument 1 of the step is a list of 3 entries"),
                      HasSubstr("split_entries = {1}")));
    look(rows(3), std::vector<Tensor>{rows(3), rows(3)});
    look(rows(3), list);  // the call before told
  });
}

/// A mask of 4 rows by 4 and offsets look like rows: that is said, once.
TEST(StepArguments, TheFirstStepSaysHowArgumentsAreSplit) {
  testing::internal::CaptureStderr();
  on_ranks(2, [] {
    auto look = smp::step([](Tensor, Tensor, Tensor) {});
    look(rows(4), torch::ones({4, 4}), torch::arange(4));
    look(rows(4), torch::ones({4, 4}), torch::arange(4));
    StepOptions options;
    options.non_split = {1};
    smp::step([](Tensor, Tensor) {}, options)(rows(4), torch::ones({4, 4}));
  });
  const auto said = testing::internal::GetCapturedStderr();
  EXPECT_THAT(said,
              AllOf(HasSubstr("a step split its batch of 4 rows into 2 microbatches: argument "
                              "0, Double [4, 3], along axis 0; argument 1, Float [4, 4], "
                              "along axis 0 (axis 1 is as long"),
                    HasSubstr("argument 2, Long [4], along axis 0 (if these are offsets"),
                    HasSubstr("argument 1, Float [4, 4], whole (non_split)")));
  const std::string three = "argument 2, Long";
  EXPECT_EQ(said.find(three), said.rfind(three)) << said;
}

/// Of a class, not a struct: nobody knows what it holds.
class Sealed {
 public:
  explicit Sealed(Tensor x) : x_(std::move(x)) {}
  const Tensor& x() const { return x_; }

 private:
  Tensor x_;
};

/// Returns the warnings among lines of the log.
std::string warnings_in(const std::string& lines) {
  std::istringstream all(lines);
  std::string warnings;
  for (std::string line; std::getline(all, line);) {
    if (line.rfind("[smp W", 0) == 0) warnings += line + "\n";
  }
  return warnings;
}

/// What ranks warn of while they run `body` once on `argument`, in two microbatches.
template <class Argument>
std::string warnings_of(Argument&& argument, const StepOptions& options = {}) {
  testing::internal::CaptureStderr();
  on_ranks(2, [&] {
    int calls = 0;
    auto look = smp::step([&](Tensor, auto&&) { ++calls; }, options);
    look(rows(4), argument);
    EXPECT_EQ(calls, rank() == 0 ? 2 : 0);
  });
  return warnings_in(testing::internal::GetCapturedStderr());
}

TEST(StepArguments, AWarningSaysThatTheWholeOfAnUnknownClassIsPassed) {
  Sealed sealed(rows(3));
  StepOptions options;
  options.non_split = {1};
  EXPECT_EQ(warnings_of(sealed, options), "") << "it is meant";
  EXPECT_THAT(warnings_of(sealed),
              AllOf(HasSubstr("argument 1 of a step is of type"), HasSubstr("Sealed"),
                    HasSubstr("every microbatch gets the whole"), HasSubstr("non_split")));
  EXPECT_EQ(warnings_of(sealed), "") << "once is enough";
}

TEST(StepArguments, AWarningSaysThatMicrobatchesAreTooFewForTheStages) {
  const auto warnings = [](std::optional<int> microbatches, std::int64_t batch, bool trains) {
    testing::internal::CaptureStderr();
    const auto run = [&] {
      FarModel own;
      StepOptions options;
      options.microbatches = microbatches;
      const torch::AutoGradMode mode(trains);
      smp::step([&](Tensor x) { return own.model(x); }, options)(rows(batch));
    };
    on_ranks(7, run, /*microbatches=*/5);
    return warnings_in(testing::internal::GetCapturedStderr());
  };
  EXPECT_EQ(warnings(7, 14, true), "");
  EXPECT_EQ(warnings(7, 3, true), "") << "the rest of the samples";
  EXPECT_EQ(warnings(5, 14, false), "") << "who evaluates may have few";
  EXPECT_THAT(warnings({}, 14, true),
              AllOf(HasSubstr("a step of 5 microbatches on 7 stages: 2 of them or more may be"),
                    HasSubstr("StepOptions::microbatches, to 14")));
  EXPECT_EQ(warnings(5, 14, true), "") << "once is enough";
}

TEST(StepArguments, NobodyExpectsRowsOfWhatStandsForSomethingElse) {
  Sealed sealed(rows(3));
  EXPECT_EQ(warnings_of(&sealed), "");
  EXPECT_EQ(warnings_of(std::make_shared<Sealed>(rows(3))), "");
  EXPECT_EQ(warnings_of(std::ref(sealed)), "");
  EXPECT_EQ(warnings_of(std::function<void()>([] {})), "");
  EXPECT_EQ(warnings_of("a literal"), "");
  EXPECT_EQ(warnings_of(nullptr), "");
}

/// What a data loader with Stack<> gives.
TEST(StepArguments, ExamplesOfADataLoaderAreSplit) {
  on_ranks(2, [] {
    using torch::data::Example;
    auto sums = smp::step([](Example<> batch) {
      return std::tuple((batch.data.sum(1) * batch.target).sum(), batch.data.size(0));
    });
    const auto [sum, length] = sums(Example<>(rows(5), rows(5).select(1, 0)));
    EXPECT_THAT(length.outputs(), ElementsAre(3, 2));
    EXPECT_DOUBLE_EQ(sum.reduce_sum().item<double>(),
                     (rows(5).sum(1) * rows(5).select(1, 0)).sum().item<double>());
    auto count = smp::step([](torch::data::TensorExample batch) { return batch.data.size(0); });
    EXPECT_THAT(count(torch::data::TensorExample(rows(5))).outputs(), ElementsAre(3, 2));
  });
}

// ---- changes in place --------------------------------------------------------------------------

/// In one process the next microbatch would begin with what this one wrote.
TEST(StepArguments, RowsThatOverlapAreNotChangedInPlace) {
  on_ranks(2, [] {
    const auto series = torch::arange(8, torch::kDouble);
    auto change = smp::step([](Tensor x) { x.select(0, 0).add_(1); });
    const auto refused = AllOf(HasSubstr("argument 0"), HasSubstr("in place"), HasSubstr("clone"));
    EXPECT_THAT(refused_step<UsageError>(0, [&] { change(series.unfold(0, 4, 1)); }), refused);
    EXPECT_THAT(refused_step<UsageError>(0, [&] { change(series.expand({2, 8})); }), refused);
    change(series.unfold(0, 4, 4));
    change(series.view({2, 4}).t());
    change(series.view({2, 1, 4}).expand({2, 3, 4}).select(1, 0));
  });
}

TEST(StepArguments, AWholeArgumentIsNotChangedInPlace) {
  on_ranks(2, [] {
    StepOptions options;
    options.non_split = {1};
    auto change = smp::step([](Tensor, Tensor whole) { whole.add_(1); }, options);
    EXPECT_THAT(refused_step<UsageError>(0, [&] { change(rows(4), rows(3)); }),
                AllOf(HasSubstr("argument 1"), HasSubstr("in place"), HasSubstr("clone it")));
  });
}

}  // namespace step_arguments_test
}  // namespace smp
