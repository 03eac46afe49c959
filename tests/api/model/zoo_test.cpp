// api/model/zoo_test.cpp: every zoo model, on 1 to 4 ranks of one process under a simulated clock,
// equals one process; both schedules, random placements by hand, random message delays.
#include <gmock/gmock.h>

#include "zoo/differential.h"

namespace smp::zoo {
namespace zoo_test {

struct Setting {
  std::string schedule;
  int ranks;
};

/// All ranks' parts; tensors of different ranks have different names.
Trace train_local(const Case& c, int ranks, const Config& config,
                  const std::map<std::string, int>& placement, uint64_t seed, torch::Dtype dtype,
                  Again again = Again::kNone) {
  Trace whole;
  run_local(ranks,
            [&] {
              auto part = train_distributed(c, placement, dtype, {}, {}, again);
              if (rank() != 0) {
                EXPECT_EQ(part.losses.size(), static_cast<std::size_t>(kSteps));
              }
              whole.losses = part.losses;
              whole.gradients.merge(part.gradients);
              whole.finals.merge(part.finals);
            },
            config, {seed});
  return whole;
}

Trace train_local(const Case& c, const Setting& setting,
                  const std::map<std::string, int>& placement, uint64_t seed,
                  torch::Dtype dtype = torch::kDouble) {
  return train_local(c, setting.ranks, zoo_config(setting.schedule), placement, seed, dtype);
}

Trace reference_of(const Case& c, torch::Dtype dtype = torch::kDouble) {
  return c.random ? train_local(c, {"simple", 1}, {}, 1, dtype) : train_in_one_process(c, dtype);
}

class Zoo : public testing::TestWithParam<std::size_t> {};

TEST_P(Zoo, EqualsOneProcess) {
  const auto c = all_cases()[GetParam()];
  SCOPED_TRACE(c.name);
  const auto reference = reference_of(c);
  for (const auto* schedule : {"interleaved", "simple"}) {
    for (int ranks = 1; ranks <= 4; ++ranks) {
      for (unsigned seed = 0; seed < 3; ++seed) {
        SCOPED_TRACE(testing::Message() << schedule << ", " << ranks << " ranks, seed " << seed);
        const auto placement = random_placement(c, ranks, seed * 10 + ranks);
        const auto ours = train_local(c, {schedule, ranks}, placement, seed);
        expect_equal(ours, reference, 1e-12);
        expect_complete(names_of(ours), reference);
        if (HasFailure()) return;
      }
    }
  }
}

TEST_P(Zoo, EqualsOneProcessIfItIsComputedAgain) {
  const auto c = all_cases()[GetParam()];
  SCOPED_TRACE(c.name);
  const auto reference = reference_of(c);
  for (const auto again : {Again::kWhole, Again::kLeaves, Again::kSome}) {
    for (const int ranks : {1, 3}) {
      SCOPED_TRACE(testing::Message() << ranks << " ranks, way " << static_cast<int>(again));
      const auto placement = random_placement(c, ranks, 7 + ranks);
      const auto ours =
          train_local(c, ranks, zoo_config("interleaved"), placement, 3, torch::kDouble, again);
      expect_equal(ours, reference, 1e-12);
      expect_complete(names_of(ours), reference);
    }
  }
}

/// The routed modules that hold parameters: each stage needs one.
int modules_to_place(const Case& c) {
  int count = 0;
  for (const auto& module : build(c, torch::kDouble)->modules()) {
    const bool routed = dynamic_cast<const RoutedBase*>(module.get()) != nullptr;
    count += routed && !module->parameters(/*recurse=*/false).empty();
  }
  return count;
}

/// Not every model has enough modules for four stages: then, and only then, the plan is refused.
TEST_P(Zoo, EqualsOneProcessUnderTheChosenPlan) {
  const auto c = all_cases()[GetParam()];
  SCOPED_TRACE(c.name);
  const auto reference = reference_of(c);
  auto config = zoo_config("interleaved");
  config.auto_partition = true;
  config.default_partition.reset();
  for (int ranks = 1; ranks <= 4; ++ranks) {
    SCOPED_TRACE(testing::Message() << ranks << " ranks");
    try {
      const auto ours = train_local(c, ranks, config, {}, 1, torch::kDouble);
      expect_equal(ours, reference, 1e-12);
      expect_complete(names_of(ours), reference);
    } catch (const ResourceError& error) {
      EXPECT_LT(modules_to_place(c), ranks) << error.what();
      EXPECT_THAT(error.what(), testing::HasSubstr("stages"));
      return;
    }
  }
}

/// A boundary re-associates sums: in float32 a few units in the last place per sum, over 5 steps of
/// momentum. 2e-5 relative to the largest entry is 170 units.
TEST_P(Zoo, EqualsOneProcessInFloat32) {
  const auto c = all_cases()[GetParam()];
  if (c.random) return;  // masks of another dtype are other masks
  SCOPED_TRACE(c.name);
  const auto placement = random_placement(c, 3, 5);
  const auto ours = train_local(c, {"interleaved", 3}, placement, 3, torch::kFloat);
  const auto reference = reference_of(c, torch::kFloat);
  expect_equal(ours, reference, 2e-5);
  expect_complete(names_of(ours), reference);
}

std::vector<std::pair<std::string, Tensor>> tensors_of(const Trace& trace) {
  std::vector<std::pair<std::string, Tensor>> all(trace.gradients.begin(), trace.gradients.end());
  all.insert(all.end(), trace.finals.begin(), trace.finals.end());
  return all;
}

TEST_P(Zoo, HasTheSameBitsWhateverTheTiming) {
  const auto c = all_cases()[GetParam()];
  SCOPED_TRACE(c.name);
  const auto placement = random_placement(c, 4, 1);
  const auto first = train_local(c, {"interleaved", 4}, placement, 100);
  for (uint64_t seed = 101; seed < 110; ++seed) {
    const auto again = train_local(c, {"interleaved", 4}, placement, seed);
    EXPECT_EQ(first.losses, again.losses) << "seed " << seed;
    const auto a = tensors_of(first), b = tensors_of(again);
    ASSERT_EQ(a.size(), b.size());
    for (std::size_t i = 0; i < a.size(); ++i) {
      ASSERT_EQ(a[i].second.defined(), b[i].second.defined()) << a[i].first;
      if (!a[i].second.defined()) continue;
      ASSERT_TRUE(torch::equal(a[i].second, b[i].second)) << a[i].first << ", seed " << seed;
    }
  }
}

std::string test_name(const testing::TestParamInfo<std::size_t>& info) {
  auto name = all_cases()[info.param].name;
  for (auto& c : name) {
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  }
  return name;
}

INSTANTIATE_TEST_SUITE_P(Models, Zoo, testing::Range<std::size_t>(0, all_cases().size()),
                         test_name);

}  // namespace zoo_test
}  // namespace smp::zoo
