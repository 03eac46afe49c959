// Models whose microbatches do not all go the same way: what is made of several traces of one.
#include <gmock/gmock.h>

#include "partition/model/cost_tree.h"
#include "partition/model/cut_bytes.h"
#include "partition/search/partitioner.h"
#include "partition/search/random_tree.h"
#include "partition/search/shortest_step.h"
#include "partition/search/step_bound.h"
#include "partition/search/tree_builder.h"
#include "schedule/schedule.h"
#include "smp/module.h"
#include "smp/nn.h"
#include "trial/trace_bytes.h"
#include "trial/traced_run.h"

namespace smp::partitioning {
namespace traced_microbatches_test {

using at::Tensor;
using testing::ElementsAre;

simulate::Trace calling(int module, double seconds, std::int64_t bytes) {
  simulate::Trace trace;
  trace.calls = {{.module = module, .caller = -1}};
  auto& call = trace.calls[0];
  call.after = {.seconds = seconds, .activation_bytes = bytes};
  call.input_bytes = call.output_bytes = bytes;
  return trace;
}

/// Of three microbatches two call a, one calls b.
struct Branches {
  Branches() {
    build.module("a", 40);
    build.module("b", 40);
    trace = calling(1, 3, 60);
    trace.others = {calling(2, 6, 30), calling(1, 3, 60)};
  }
  TreeBuilder build;
  simulate::Trace trace;
};

TEST(TracedMicrobatches, CostWhatTheyCostOnAverage) {
  const Branches model;
  const auto tree =
      make_cost_tree(model.build.tree, model.trace, nothing_fixed(model.build.tree), {0});
  const double both = 1 + model.trace.backward_ratio;
  EXPECT_DOUBLE_EQ(tree.nodes[1].seconds, both * 2);
  EXPECT_DOUBLE_EQ(tree.nodes[2].seconds, both * 2);
  EXPECT_EQ(tree.nodes[1].activation_bytes, 40);
  EXPECT_EQ(tree.nodes[2].activation_bytes, 10);
  EXPECT_DOUBLE_EQ(tree.nodes[2].cost, 0.5);
  simulate::Machine two;
  two.stages = 2;
  const auto cuts = cut_bytes(model.trace, {0, 0, 1}, two);
  EXPECT_EQ(cuts[1].in, 10);
  EXPECT_EQ(cuts[0].in, 10);
}

/// A plan that knew the first microbatch only would have nothing to divide.
TEST(TracedMicrobatches, ArePlannedFor) {
  const Branches model;
  PartitionOptions options;
  options.pp_size = 2;
  options.trace = model.trace;
  options.microbatches = 6;
  options.active_microbatches = 4;
  const auto plan = make_plan(model.build.tree, options);
  EXPECT_NE(plan.rows()[1].pp_rank, plan.rows()[2].pp_rank);
  EXPECT_DOUBLE_EQ(plan.rows()[2].cost, 0.5);  // memory weighs nothing where there is room
}

TEST(TracedMicrobatches, TravelFromATrialWhole) {
  const Branches model;
  const auto again = traces_from_bytes(traces_to_bytes({model.trace})).at(0);
  ASSERT_EQ(again.others.size(), 2u);
  EXPECT_TRUE(again.goes_as(model.trace));
  EXPECT_TRUE(again.others[0].goes_as(model.trace.others[0]));
  EXPECT_TRUE(again.others[1].goes_as(model.trace));
}

/// Every other microbatch leaves out a part of the calls, and takes other times for the rest.
simulate::Trace other_way(const simulate::Trace& trace, std::uint64_t seed) {
  simulate::Trace other = trace;
  const auto kept = 1 + seed % other.calls.size();
  other.calls.resize(kept);
  for (auto& call : other.calls) call.after.seconds *= 0.5 + static_cast<double>(seed % 5);
  // Some have no backward, and a longer forward.
  if (seed % 3 == 0) {
    for (auto& call : other.calls) {
      call.after.seconds *= 3;
      call.after.backward_seconds = 0;
    }
  }
  return other;
}

/// One microbatch begins early and ends late, the other the other way round: stages wait for
/// neither as long as both together would make them.
TEST(TracedMicrobatches, ThatWaitAtOtherEndsAreNoLongerThanTheBound) {
  TreeBuilder build;
  build.module("x", 4);
  build.module("y", 4);
  simulate::Trace trace;
  trace.calls = {{.module = 1, .caller = -1}, {.module = 2, .caller = -1}};
  const auto take = [](simulate::Trace& own, double xf, double xb, double yf, double yb) {
    own.calls[0].after.seconds = xf;
    own.calls[0].after.backward_seconds = xb;
    own.calls[1].after.seconds = yf;
    own.calls[1].after.backward_seconds = yb;
    own.loss_call = 1;
  };
  simulate::Trace other = trace;
  take(trace, 4, 8, 5, 5);
  take(other, 10, 0, 4, 4);
  trace.others = {other};
  const auto costs = make_cost_tree(build.tree, trace, nothing_fixed(build.tree), {});
  const auto machine = simulate::ideal_machine(2);
  const auto schedule = schedule::make_schedule("interleaved", {2, 2, 2});
  const StepSettings settings{2, schedule.get(), 0};
  const StepJudge judge(build.tree, trace, costs, machine, settings);
  const double shortest = shortest_step(judge, costs, 2);
  EXPECT_LE(step_lower_bound(trace, costs, machine, settings), shortest);
  EXPECT_LT(shortest, 25) << "what it would be if each stage waited for both";
}

TEST(TracedMicrobatches, TakeNoLessThanTheBound) {
  int tight = 0;
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    auto model = random_model(seed, {.modules = 5});
    if (model.trace.calls.empty()) continue;
    const auto other = other_way(model.trace, seed);
    model.trace.others = {other};
    const auto costs = make_cost_tree(model.tree, model.trace, model.fixed, {});
    const auto machine = simulate::ideal_machine(2);
    const int microbatches = 1 + static_cast<int>(seed % 5);
    const char* names[] = {"simple", "1f1b", "zero_bubble", "interleaved"};
    const auto schedule = schedule::make_schedule(names[seed % 4], {2, microbatches, 3});
    const StepSettings settings{microbatches, schedule.get(), 0};
    const StepJudge judge(model.tree, model.trace, costs, machine, settings);
    const double bound = step_lower_bound(model.trace, costs, machine, settings);
    const double shortest = shortest_step(judge, costs, 2);
    EXPECT_LE(bound, shortest + 1e-7) << "seed " << seed << ", " << names[seed % 4];
    if (bound > 0.9 * shortest) ++tight;
  }
  EXPECT_GE(tight, 15) << "a bound that says little is of no use";
}

// ---- traced -------------------------------------------------------------------------------------

/// A branch that the sign of its input decides.
struct ForkImpl : torch::nn::Module {
  ForkImpl()
      : plus(register_module("plus", nn::Linear(8, 8))),
        minus(register_module("minus", nn::Linear(8, 4))) {}
  Tensor forward(const Tensor& x) { return x.sum().item<double>() > 0 ? plus(plus(x)) : minus(x); }
  nn::Linear plus, minus;
};
SMP_MODULE(Fork);

std::vector<std::size_t> calls_of(const std::vector<double>& signs, int repeats = 0) {
  Fork net;
  const Described described(*net);
  Tracer tracer({{&described.tree, &described.modules, &described.routed}}, 1);
  Tracer::Bodies bodies;
  for (const double sign : signs) {
    bodies.emplace_back([&net, sign] { return std::vector{net(sign * torch::ones({5, 8}))}; });
  }
  const auto trace = tracer.run(bodies, repeats).at(0);
  std::vector<std::size_t> calls;
  for (std::size_t i = 0; i < trace.num_traced(); ++i) {
    EXPECT_EQ(trace.of_microbatch(i).source,
              repeats > 0 ? simulate::CostSource::kMeasured : simulate::CostSource::kEstimated);
    calls.push_back(trace.of_microbatch(i).calls.size());
  }
  return calls;
}

TEST(TracedMicrobatches, AreOneWhereAllDoTheSame) {
  EXPECT_THAT(calls_of({1}), ElementsAre(3));
  EXPECT_THAT(calls_of({1, 2, 3}), ElementsAre(3));
  EXPECT_THAT(calls_of({1, -1, 1, 1}), ElementsAre(3, 2, 3, 3));
  EXPECT_THAT(calls_of({-1, -1, 1}, 2), ElementsAre(2, 2, 3));
}

/// The second microbatch is the one that reads a weight of another module.
struct ReaderImpl : torch::nn::Module {
  ReaderImpl()
      : table(register_module("table", nn::Linear(8, 8))),
        user(register_module("user", nn::Linear(8, 8))) {}
  Tensor forward(const Tensor& x) {
    const auto y = user(x);
    return x.sum().item<double>() > 0 ? y : y * table->weight.sum();
  }
  nn::Linear table, user;
};
SMP_MODULE(Reader);

TEST(TracedMicrobatches, AllTellWhoseWeightsAreRead) {
  Reader net;
  const Described described(*net);
  Tracer tracer({{&described.tree, &described.modules, &described.routed}}, 1);
  const auto run = [&](double sign) {
    return [&net, sign] { return std::vector{net(sign * torch::ones({5, 8}))}; };
  };
  EXPECT_TRUE(tracer.run({run(1)}, 0).at(0).foreign_uses.empty());
  EXPECT_EQ(tracer.run({run(1), run(-1)}, 0).at(0).foreign_uses.size(), 1u);
}

}  // namespace traced_microbatches_test
}  // namespace smp::partitioning
