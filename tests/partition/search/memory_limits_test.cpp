// Stages that may hold only so much: plans that keep to it, and what is said if none does.
#include <gmock/gmock.h>

#include <algorithm>
#include <limits>

#include "partition/search/step_judge.h"
#include "partition/search/strategies.h"
#include "partition/search/tree_builder.h"
#include "trial/planning.h"

namespace smp::partitioning {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(Partitioner, KeepsStagesWithinTheirMemory) {
  const SyntheticModel model = flat_gpt({.layers = 8, .vocabulary = 1000});
  PartitionOptions options = traced(model, 4, 8);
  const auto free = make_plan(model.tree, options);
  options.machine.memory.assign(4, 0);
  for (int s = 0; s < 4; ++s) {
    options.machine.memory[s] = free.summary()->stages[s].most_memory() * (s == 1 ? 9 : 12) / 10;
  }
  const auto capped = make_plan(model.tree, options);
  for (int s = 0; s < 4; ++s) {
    EXPECT_LE(capped.summary()->stages[s].most_memory(), options.machine.memory[s]);
  }
  EXPECT_NE(capped.to_json(), free.to_json());
}

/// Most bytes of a stage, at least, over the ways to run the paper's algorithm.
std::int64_t least_memory_of_the_papers(const SyntheticModel& model,
                                        const PartitionOptions& options) {
  auto machine = options.machine;
  machine.stages = options.pp_size;
  const auto schedule = schedule::make_schedule(options.pipeline, shape_of(options));
  const StepSettings settings{options.microbatches, schedule.get(), options.optimizer_ratio};
  auto least = std::numeric_limits<std::int64_t>::max();
  for (const auto source : {model.trace.source, simulate::CostSource::kCounts}) {
    for (const double alpha : {0.0, 0.2, 0.5, 0.8}) {
      auto trace = model.trace;
      trace.source = source;
      const auto costs = make_cost_tree(model.tree, trace, nothing_fixed(model.tree), {alpha});
      const StepJudge judge(model.tree, model.trace, costs, machine, settings);
      for (const auto ties : {SeatTies::kFewestSeats, SeatTies::kFirst}) {
        std::int64_t most = 0;
        const auto stages = tree_partition(costs, machine, ties);
        for (const auto& stage : judge.judge_within(stages, 500'000).memory) {
          most = std::max(most, stage.most());
        }
        least = std::min(least, most);
      }
    }
  }
  return least;
}

/// Whichever of its sixteen ways to run is the one whose largest stage is smallest.
TEST(Partitioner, FitsWhereThePapersAlgorithmDoes) {
  for (const auto& family : family_names()) {
    for (const auto& [stages, member] : {std::pair{4, 1}, {4, 2}, {16, 1}}) {
      const auto model = family_member(family, static_cast<std::uint64_t>(member));
      auto options = traced(model, stages, 2 * stages);
      const auto limit = least_memory_of_the_papers(model, options) * 21 / 20;
      options.machine.memory.assign(static_cast<std::size_t>(stages), limit);
      EXPECT_EQ(refusal_of<ResourceError>(model.tree, options), "accepted")
          << family << member << " on " << stages;
    }
  }
}

TEST(Partitioner, SaysWhoLacksHowMuchMemoryAndWhatWouldHelp) {
  const SyntheticModel model = flat_gpt({.layers = 8, .vocabulary = 1000});
  PartitionOptions options = traced(model, 2, 16);
  options.machine.memory = {800 << 20, 800 << 20};
  const std::string text = refusal_of<ResourceError>(model.tree, options);
  EXPECT_THAT(text, AllOf(HasSubstr("the model does not fit: however it is cut, some stage needs "),
                          HasSubstr(" times its memory or more\n  stage 0 needs "),
                          HasSubstr(" and may use 800.0 MiB, "), HasSubstr("too little (weights"),
                          HasSubstr("what would help:\n  - more stages: the model needs ")));
  EXPECT_THAT(text, HasSubstr("active_microbatches = "));
}

TEST(Partitioner, NamesRemediesThatReallyHelp) {
  const SyntheticModel model = flat_gpt({.layers = 8, .vocabulary = 1000});
  PartitionOptions options = traced(model, 2, 16);
  const PartitionPlan plan = make_plan(model.tree, options);
  for (const auto& stage : plan.summary()->stages) {
    options.machine.memory.push_back(stage.most_memory() - stage.optimizer * 9 / 10);
  }
  EXPECT_THAT(refusal_of<ResourceError>(model.tree, options),
              HasSubstr("an optimizer without state"));
  options.optimizer_ratio = 0;
  EXPECT_EQ(refusal_of<ResourceError>(model.tree, options), "accepted");
}

/// What arrives is as large as the microbatch, too.
TEST(Partitioner, NamesSmallerMicrobatchesWhereTooMuchArrives) {
  const SyntheticModel model = flat_gpt({.layers = 8, .vocabulary = 1000});
  PartitionOptions options = traced(model, 2, 16);
  options.strategy = "contiguous";
  for (auto& call : options.trace.calls) call.input_bytes = call.output_bytes = 100 << 20;
  const PartitionPlan plan = make_plan(model.tree, options);
  for (const auto& stage : plan.summary()->stages) {
    options.machine.memory.push_back(stage.most_memory() - stage.most_activations * 2 / 5);
  }
  EXPECT_THAT(refusal_of<ResourceError>(model.tree, options),
              HasSubstr("microbatches = 32, so that each is smaller"));
}

TEST(Partitioner, NamesAModuleThatNoStageCanHold) {
  const SyntheticModel model = nested_gpt({.layers = 2, .width = 256});
  PartitionOptions options = traced(model, 4, 4);
  options.machine.memory.assign(4, 100 << 20);
  EXPECT_THAT(refusal_of<ResourceError>(model.tree, options),
              AllOf(HasSubstr("\"transformer.wte\" and what shares its weights needs 195.3 MiB, "
                              "more than any stage may use"),
                    testing::Not(HasSubstr("more stages:"))));
}

/// 7, 5, 4 and 4 units in two stages of 10, trained by SGD: no bound excludes it, no placement
/// fits.
TreeBuilder four_modules() {
  TreeBuilder build;
  for (const int units : {7, 5, 4, 4}) {
    build.module("m" + std::to_string(build.tree.nodes.size()), 400 * units);
  }
  return build;
}

PartitionOptions ten_units_each() {
  PartitionOptions options = on_stages(2);
  options.optimizer_ratio = 0;
  options.machine.memory.assign(2, 8000);
  return options;
}

TEST(Partitioner, ClaimsNoProofWhereItHasNone) {
  const auto build = four_modules();
  auto options = ten_units_each();
  EXPECT_THAT(refusal_of<ResourceError>(build.tree, options),
              HasSubstr("no placement was found that fits, which is no proof that there is none"));
  for (auto& limit : options.machine.memory) limit = 7999;
  EXPECT_THAT(refusal_of<ResourceError>(build.tree, options), HasSubstr("however it is cut"));
  for (auto& limit : options.machine.memory) limit = 8800;
  EXPECT_EQ(refusal_of<ResourceError>(build.tree, options), "accepted") << "7 + 4, 5 + 4";
}

TEST(Partitioner, BlamesPinsWhereTheyAreTheReason) {
  const auto build = four_modules();
  auto options = ten_units_each();
  for (auto& limit : options.machine.memory) limit = 8800;
  options.pins = {{"m1", 0, "a test"}, {"m2", 0, "a test"}};  // 7 + 5 of 11
  EXPECT_THAT(refusal_of<ResourceError>(build.tree, options),
              AllOf(HasSubstr("the model does not fit with modules where they are pinned: however "
                              "the rest is cut, some stage needs 1.09 times its memory or more\n"),
                    HasSubstr("\n  stage 0 needs ")));
}

TEST(Partitioner, SaysThatAPlacementByHandDoesNotFit) {
  const auto build = four_modules();
  auto options = ten_units_each();
  options.pins = {{"", 0, "a test"}};
  EXPECT_THAT(refusal_of<ResourceError>(build.tree, options),
              HasSubstr("the model does not fit as it is placed by hand:\n  stage 0 needs "));
}

TEST(Partitioner, MakesThePlanThatLacksLeastWhereLimitsAreNotRefused) {
  const auto build = four_modules();
  auto options = ten_units_each();
  options.refuse_unfit = false;
  const auto plan = make_plan(build.tree, options);
  std::int64_t most = 0;
  for (const auto& stage : plan.summary()->stages) most = std::max(most, stage.most_memory());
  EXPECT_EQ(most, 8800);
}

TEST(Partitioner, NeedsRoomForSumsOverReplicas) {
  const auto build = four_modules();
  auto options = ten_units_each();
  options.machine.memory.assign(2, 8800);
  EXPECT_EQ(refusal_of<ResourceError>(build.tree, options), "accepted");
  options.gradient_copies = 2;
  EXPECT_THAT(refusal_of<ResourceError>(build.tree, options), HasSubstr("the model does not fit"));
}

TEST(Partitioner, NeedsNoRoomForGradientsOfFrozenWeights) {
  auto build = four_modules();
  auto options = ten_units_each();
  options.machine.memory.assign(2, 4400);
  EXPECT_NE(refusal_of<ResourceError>(build.tree, options), "accepted");
  for (auto& parameter : build.tree.parameters) parameter.gradient_bytes = 0;
  EXPECT_EQ(refusal_of<ResourceError>(build.tree, options), "accepted");
}

}  // namespace
}  // namespace smp::partitioning
