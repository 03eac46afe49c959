// A bound on what stages hold: by hand, and above every simulated step.
#include "simulate/most_activations.h"

#include <gmock/gmock.h>
#include <rapidcheck.h>

#include "simulate/random_timed_model.h"
#include "simulate/simulate_chain.h"

namespace smp::simulate {
namespace {

using testing::ElementsAre;

TEST(MostActivations, AreAllMicrobatchesAtTheirWorstAndOneOfThemComputing) {
  auto model = traced_chain({0.1, 0.1, 0.1});
  model.trace.calls[2].after.gradient_bytes = 50;
  model.trace.calls[3].caller_gradient_bytes = 7;  // waits on stage 0
  const auto most = [&](int microbatches) {
    const auto schedule = schedule::make_simple();
    return most_activations(model.trace, {0, 0, 1, 2}, ideal_machine(3),
                            {.microbatches = microbatches, .schedule = schedule.get()});
  };
  EXPECT_THAT(most(1), ElementsAre(1 + 7, 1 + 50, 1));
  EXPECT_THAT(most(4), ElementsAre(4 * (1 + 7), 4 + 50, 4));
}

/// Two requests of the body to stage 1, each with a result of 100 bytes and an activation of 1.
std::vector<std::int64_t> most_of_two_requests(double seconds_between, std::int64_t input_bytes) {
  TimedModel model;
  const int root = model.call(-1, 0);
  for (int i = 0; i < 2; ++i) {
    auto& call = model.trace.calls[model.call(root, 0.1, 1)];
    call.before.seconds = i == 1 ? seconds_between : 0;
    call.input_bytes = input_bytes;
    call.output_bytes = 100;
  }
  const auto schedule = schedule::make_simple();
  return most_activations(model.trace, {0, 0, 1, 1}, ideal_machine(2),
                          {.microbatches = 3, .schedule = schedule.get()});
}

TEST(MostActivations, CountGradientsThatComeAtOnceForRequestsThatDoNotNeedEachOther) {
  EXPECT_EQ(most_of_two_requests(0, 0)[1], 3 * 2 * (1 + 100));
  EXPECT_EQ(most_of_two_requests(1, 60)[0], 3 * 2 * 60) << "of both inputs";
  EXPECT_EQ(most_of_two_requests(0, 60)[0], 3 * 100) << "the first's result is the other's input";
}

/// The body sends a gradient of 100 bytes, and holds 7 of others until the answer.
TEST(MostActivations, CountGradientsWithTheirSenderUntilTheyAreFetched) {
  auto model = traced_chain({0.1});
  model.trace.calls[1].output_bytes = 100;
  model.trace.calls[1].caller_gradient_bytes = 7;
  const auto schedule = schedule::make_simple();
  EXPECT_EQ(most_activations(model.trace, {0, 1}, ideal_machine(2),
                             {.microbatches = 6, .schedule = schedule.get()})[0],
            6 * (100 + 7));
}

TEST(MostActivations, CountRequestsThatWaitUntilTheirMicrobatchMayEnter) {
  auto model = traced_chain({0.1, 0.1});
  model.trace.calls[2].input_bytes = 100;
  const auto schedule = schedule::make_schedule("1f1b", {.pp_size = 2, .microbatches = 6});
  const auto most = most_activations(model.trace, {0, 0, 1}, ideal_machine(2),
                                     {.microbatches = 6, .schedule = schedule.get()});
  const int alive = schedule->most_alive(1, 6), outside = schedule->most_alive(0, 6) - alive;
  ASSERT_GT(outside, 0);
  EXPECT_EQ(most[1], alive * 100 + outside * 100);
}

/// Stage 0 may be done with a microbatch, and begin another, while stage 1 has weight gradients of
/// it left to compute: three are kept there and one waits, though only three are in flight.
TEST(MostActivations, CountRequestsThatWaitWhileWeightGradientsAreLeft) {
  TimedModel model;
  model.trace.calls[model.call(-1, 913e-6)].input_bytes = 478;
  auto& call = model.trace.calls.back();
  call.output_bytes = 352;
  call.after.activation_bytes = 70;
  call.after.gradient_bytes = 395;
  model.trace.body_after.seconds = 1e-4;
  const auto schedule = schedule::make_schedule("zero_bubble", {.pp_size = 3, .microbatches = 4});
  const SimulationOptions options{.microbatches = 4, .schedule = schedule.get(), .jitter = 0.3};
  Machine machine;
  machine.stages = 3;
  ASSERT_EQ(schedule->most_alive(0, 4), 3);
  ASSERT_EQ(schedule->most_alive(1, 4), 3);
  // What is kept for weight gradients, beside the gradients sent; one of them computes; one request
  // is outside.
  EXPECT_EQ(most_activations(model.trace, {0, 1}, machine, options)[1],
            3 * (70 + 478) + 395 + 1 * 478);
  EXPECT_GT(simulate(model.trace, {0, 1}, machine, options).peak_activations[1], 3 * 478);
}

void check_some_model() {
  auto model = random_timed_model();
  fill_in_bytes(model.trace);
  Machine machine;
  machine.stages = *rc::gen::inRange(1, 5);
  machine.promised_outputs = *rc::gen::arbitrary<bool>();
  const auto stages = *rc::gen::container<std::vector<int>>(static_cast<std::size_t>(model.modules),
                                                            rc::gen::inRange(0, machine.stages));
  SimulationOptions options{.microbatches = *rc::gen::inRange(1, 7), .jitter = 0.3};
  options.seed = *rc::gen::arbitrary<std::uint64_t>();
  const auto name = *rc::gen::element<std::string>("simple", "interleaved", "1f1b", "zero_bubble");
  const auto schedule = schedule::make_schedule(
      name, {machine.stages, options.microbatches, *rc::gen::inRange(1, 5)});
  options.schedule = schedule.get();
  const auto step = simulate(model.trace, stages, machine, options);
  const auto most = most_activations(model.trace, stages, machine, options);
  for (int stage = 0; stage < machine.stages; ++stage) {
    RC_ASSERT(step.peak_activations[stage] <= most[stage]);
  }
}

TEST(MostActivations, AreNeverExceededByASimulatedStep) {
  constexpr int kModelsOfACase = 20;
  EXPECT_TRUE(rc::check([] {
    for (int i = 0; i < kModelsOfACase; ++i) check_some_model();
  }));
}

}  // namespace
}  // namespace smp::simulate
