// Placement, microbatches in flight and what is computed again, chosen together: beside the best of
// all there are.
#include "partition/search/recompute_choice.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cstdlib>
#include <limits>

#include "partition/model/stage_use.h"
#include "partition/search/random_tree.h"
#include "partition/search/step_judge.h"
#include "simulate/most_activations.h"
#include "trial/planning.h"

namespace smp::partitioning {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr int kStages = 2;
constexpr int kMicrobatches = 6;
constexpr int kInFlight = 3;

/// A random model whose activations are as large as its weights.
RandomModel small_model(std::uint64_t seed, int modules) {
  auto model = random_model(seed, {.modules = modules, .oddities = false});
  for (auto& call : model.trace.calls) {
    call.after.activation_bytes *= 4;
    call.before.activation_bytes += call.input_bytes / 4;
  }
  return model;
}

PartitionOptions options_for(const RandomModel& model) {
  auto options = on_stages(kStages);
  options.trace = model.trace;
  options.microbatches = kMicrobatches;
  options.active_microbatches = kInFlight;
  options.machine.stages = kStages;
  for (std::size_t m = 1; m < model.tree.nodes.size(); ++m) {
    options.recomputable.push_back(static_cast<int>(m));
  }
  return options;
}

/// Tries every placement, number in flight and choice.
class AllPlans {
 public:
  AllPlans(const RandomModel& model, const PartitionOptions& options)
      : model_(model), options_(options) {}

  /// Returns the least value of a plan that fits; infinite if none does.
  double best() {
    for (int in_flight = 1; in_flight <= options_.active_microbatches; ++in_flight) {
      schedule_ = schedule::make_interleaved(in_flight);
      for_all_placements([&] { try_choices(); });
    }
    return best_;
  }
  /// Returns the bytes of the fullest stage where all of `recomputed` are computed again, in the
  /// placement that needs least.
  std::int64_t least_memory(const std::vector<int>& recomputed, int in_flight) {
    schedule_ = schedule::make_interleaved(in_flight);
    auto least = std::numeric_limits<std::int64_t>::max();
    for_all_placements([&] {
      const auto bytes = most(recomputed);
      least = std::min(least, *std::max_element(bytes.begin(), bytes.end()));
    });
    return least;
  }

 private:
  template <class Body>
  void for_all_placements(const Body& body) {
    const auto costs = costs_of(model_.trace);
    for (unsigned bits = 0; bits < 1u << (costs.nodes.size() - 1); ++bits) {
      nodes_.assign(1, 0);
      for (std::size_t n = 1; n < costs.nodes.size(); ++n) {
        nodes_.push_back(static_cast<int>(bits >> (n - 1)) & 1);
      }
      if (!every_stage_used(costs, options_.machine, nodes_)) continue;
      stages_ = stages_of_modules(costs, nodes_);
      body();
    }
  }

  CostTree costs_of(const simulate::Trace& trace) const {
    return make_cost_tree(model_.tree, trace, model_.fixed, {.memory_weight = 0});
  }

  std::vector<std::int64_t> most(const std::vector<int>& recomputed) const {
    auto trace = model_.trace;
    trace.recomputed = recomputed;
    const simulate::SimulationOptions options{.microbatches = kMicrobatches,
                                              .schedule = schedule_.get()};
    const auto activations = most_activations(trace, stages_, options_.machine, options);
    std::vector<std::int64_t> bytes;
    for (const auto& stage : predict_memory(model_.tree, stages_, {activations, activations},
                                            options_.optimizer_ratio)) {
      bytes.push_back(stage.most());
    }
    return bytes;
  }

  /// Of the choices that fit a stage, the one that adds least time to it.
  bool choose(int stage, std::vector<int>& chosen) const {
    std::vector<int> own;
    for (const int module : options_.recomputable) {
      if (stages_[module] == stage) own.push_back(module);
    }
    double least = std::numeric_limits<double>::infinity();
    std::vector<int> found;
    for (unsigned bits = 0; bits < 1u << own.size(); ++bits) {
      std::vector<int> some;
      for (std::size_t i = 0; i < own.size(); ++i) {
        if ((bits >> i & 1) != 0) some.push_back(own[i]);
      }
      if (most(some)[stage] > options_.machine.memory[stage]) continue;
      const double seconds = added_seconds(some, stage);
      if (seconds >= least) continue;
      least = seconds;
      found = some;
    }
    chosen.insert(chosen.end(), found.begin(), found.end());
    return least < std::numeric_limits<double>::infinity();
  }

  /// By the simulator, on one microbatch.
  double added_seconds(const std::vector<int>& recomputed, int stage) const {
    auto trace = model_.trace;
    trace.recomputed = recomputed;
    const simulate::SimulationOptions options{.microbatches = 1, .schedule = schedule_.get()};
    return simulate::simulate(trace, stages_, options_.machine, options).busy[stage];
  }

  void try_choices() {
    std::vector<int> chosen;
    for (int stage = 0; stage < kStages; ++stage) {
      if (!choose(stage, chosen)) return;
    }
    std::sort(chosen.begin(), chosen.end());
    auto trace = model_.trace;
    trace.recomputed = chosen;
    const auto costs = costs_of(trace);
    const StepJudge judge(
        model_.tree, trace, costs, options_.machine,
        {kMicrobatches, schedule_.get(), options_.optimizer_ratio, /*balance_weight=*/0});
    const auto judgement = judge.judge(nodes_, kMicrobatches);
    if (judgement.fits()) best_ = std::min(best_, judgement.value());
  }

  const RandomModel& model_;
  const PartitionOptions& options_;
  std::unique_ptr<schedule::Schedule> schedule_;
  std::vector<int> nodes_, stages_;
  double best_ = std::numeric_limits<double>::infinity();
};

/// As make_plan() values what it made.
double value_of(const RandomModel& model, const PartitionOptions& options,
                const PartitionPlan& plan) {
  auto trace = model.trace;
  std::vector<int> stages;
  for (std::size_t m = 0; m < plan.rows().size(); ++m) {
    stages.push_back(plan.rows()[m].pp_rank);
    if (plan.rows()[m].recomputed) trace.recomputed.push_back(static_cast<int>(m));
  }
  const auto costs = make_cost_tree(model.tree, trace, model.fixed, {.memory_weight = 0});
  std::vector<int> nodes;
  for (const auto& node : costs.nodes) nodes.push_back(stages[node.modules.front()]);
  const auto schedule = schedule::make_interleaved(plan.summary()->active_microbatches);
  const StepJudge judge(model.tree, trace, costs, options.machine,
                        {kMicrobatches, schedule.get(), options.optimizer_ratio, 0});
  const auto judgement = judge.judge(nodes, kMicrobatches);
  EXPECT_TRUE(judgement.fits());
  return judgement.value();
}

/// Limits from what everything computed again needs to what nothing does, where there is a choice.
/// More models: SMP_RECOMPUTE_MODELS and SMP_RECOMPUTE_MODULES.
int number_from(const char* name, int otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoi(text);
}

TEST(RecomputeChoice, IsAsGoodAsTheBestOfAllPlans) {
  const int models = number_from("SMP_RECOMPUTE_MODELS", 60);
  const int most_modules = number_from("SMP_RECOMPUTE_MODULES", 6);
  int recomputing = 0, worse = 0;
  for (int seed = 1; seed <= models; ++seed) {
    const auto model = small_model(static_cast<std::uint64_t>(seed), 3 + seed % (most_modules - 2));
    auto options = options_for(model);
    AllPlans all(model, options);
    const auto least = all.least_memory(options.recomputable, 1);
    const auto enough = all.least_memory({}, kInFlight);
    if (enough <= least) continue;
    const double share = 0.1 + 0.2 * (seed % 4);
    options.machine.memory.assign(
        kStages, least + static_cast<std::int64_t>(share * static_cast<double>(enough - least)));
    const double best = all.best();
    if (best == std::numeric_limits<double>::infinity()) continue;
    std::string refused;
    try {
      const auto plan = make_plan(model.tree, options);
      const double own = value_of(model, options, plan);
      if (own > 1.02 * best) ++worse;
      EXPECT_LE(own, 1.02 * best) << "seed " << seed;
      recomputing += std::any_of(plan.rows().begin(), plan.rows().end(),
                                 [](const auto& row) { return row.recomputed; });
    } catch (const ResourceError& error) {
      refused = error.what();
    }
    EXPECT_EQ(refused, "") << "seed " << seed;
  }
  EXPECT_GT(recomputing, models / 4);
  EXPECT_EQ(worse, 0);
}

TEST(RecomputeChoice, NothingIsComputedAgainWhereEverythingFits) {
  const auto model = small_model(3, 8);
  auto options = options_for(model);
  const auto free = make_plan(model.tree, options);
  options.machine.memory.assign(kStages, std::int64_t{1} << 40);
  const auto plan = make_plan(model.tree, options);
  EXPECT_EQ(plan.summary()->active_microbatches, kInFlight);
  for (std::size_t m = 0; m < plan.rows().size(); ++m) {
    EXPECT_FALSE(plan.rows()[m].recomputed);
    EXPECT_EQ(plan.rows()[m].pp_rank, free.rows()[m].pp_rank);
  }
}

TEST(RecomputeChoice, SaysWhatCameClosest) {
  const auto model = small_model(5, 8);
  auto options = options_for(model);
  options.machine.memory.assign(kStages, 1000);
  EXPECT_THAT(refusal_of<ResourceError>(model.tree, options),
              AllOf(HasSubstr("the model does not fit"), HasSubstr("closest came: \"m"),
                    HasSubstr("computed again, and 1 microbatch in flight")));
}

TEST(RecomputeChoice, ThePlanTellsWhatIsComputedAgain) {
  const auto gpt = flat_gpt({.layers = 8, .vocabulary = 1000});
  auto options = traced(gpt, 2, 8);
  options.active_microbatches = 2;  // with one, stages wait for each other
  const auto free = make_plan(gpt.tree, options);
  std::int64_t limit = 0;
  for (const auto& stage : free.summary()->stages) {
    limit = std::max(limit, stage.most_memory() - stage.most_activations * 4 / 10);
  }
  for (std::size_t m = 1; m < gpt.tree.nodes.size(); ++m) {
    options.recomputable.push_back(static_cast<int>(m));
  }
  options.machine.memory.assign(2, limit);
  const auto plan = make_plan(gpt.tree, options);
  EXPECT_THAT(plan.table(), HasSubstr("computed again in backward, instead of held: "));
  EXPECT_THAT(plan.table(), HasSubstr("active_microbatches: "));
  EXPECT_THAT(plan.table(), HasSubstr("not predicted: what a stage computes again ahead"));
  EXPECT_THAT(free.table(), Not(HasSubstr("not predicted")));
  EXPECT_TRUE(plan.summary()->chosen.fits);
  const auto read = PartitionPlan::from_json(plan.to_json(), "plan");
  EXPECT_EQ(read.table(), plan.table());
}

}  // namespace
}  // namespace smp::partitioning
