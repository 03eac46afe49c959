// What becomes of a trace: which calls are one request, and which compute intervals are one
// operation.
#include "simulate/step_program.h"

#include <gmock/gmock.h>

#include "simulate/timed_model.h"

namespace smp::simulate {
namespace {

using base::kMicrosecond;
using base::kMillisecond;
using base::Nanoseconds;
using testing::ElementsAre;

/// Durations of a task's computations; -1 stands for a request.
std::vector<Nanoseconds> operations_of(const StepProgram& program, int task) {
  std::vector<Nanoseconds> durations;
  for (int i = program.tasks[task].first; i >= 0; i = program.operations[i].next) {
    const auto& operation = program.operations[i];
    durations.push_back(operation.callee >= 0 ? -1 : operation.forward);
  }
  return durations;
}

StepProgram compile_chain(const std::vector<double>& seconds, const std::vector<int>& stages) {
  const auto model = traced_chain(seconds);
  return compile(model.trace, stages, ideal_machine(4));
}

TEST(StepProgram, JoinsShortIntervalsOfOneStage) {
  const auto program = compile_chain(std::vector<double>(8, 20e-6), std::vector<int>(9, 0));
  EXPECT_THAT(operations_of(program, 0), ElementsAre(120 * kMicrosecond, 40 * kMicrosecond));
}

TEST(StepProgram, EndsALongIntervalWhereTheRuntimeLooksForAnswers) {
  const auto program = compile_chain({1e-3, 2e-3}, {0, 0, 0});
  EXPECT_THAT(operations_of(program, 0), ElementsAre(1 * kMillisecond, 2 * kMillisecond));
}

TEST(StepProgram, NeighboursInASequentialAreOneRequest) {
  const auto program = compile_chain({1e-3, 2e-3, 3e-3, 4e-3, 5e-3}, {0, 0, 1, 1, 2, 1});
  ASSERT_EQ(program.tasks.size(), 4u);
  EXPECT_THAT(operations_of(program, 0), ElementsAre(1 * kMillisecond, -1, -1, -1));
  EXPECT_THAT(operations_of(program, 1), ElementsAre(2 * kMillisecond, 3 * kMillisecond));
  EXPECT_THAT(operations_of(program, 2), ElementsAre(4 * kMillisecond));
  EXPECT_EQ(program.tasks[3].stage, 1);
}

TEST(StepProgram, ARequestCarriesTheInputOfItsFirstCallAndTheOutputOfItsLast) {
  auto model = traced_chain({1e-3, 1e-3, 1e-3});
  for (int i = 1; i <= 3; ++i) {
    model.trace.calls[i].input_bytes = i * 1000;
    model.trace.calls[i].output_bytes = i * 100;
  }
  auto machine = ideal_machine(2);
  machine.bytes_per_second = 1e6;
  const auto program = compile(model.trace, {0, 0, 1, 1}, machine);
  EXPECT_EQ(program.tasks[1].there.duration, 2 * kMillisecond);
  EXPECT_EQ(program.tasks[1].back.duration, 300 * kMicrosecond);
}

TEST(StepProgram, ACallersIntervalsSurroundItsRequests) {
  TimedModel model;
  const int root = model.call_again(0, -1, 3e-3);
  model.call(root, 1e-3);
  model.trace.calls[1].before.seconds = 2e-3;
  model.trace.body_after.seconds = 4e-3;
  const auto program = compile(model.trace, {0, 1}, ideal_machine(2));
  EXPECT_THAT(operations_of(program, 0), ElementsAre(2 * kMillisecond, -1, 7 * kMillisecond));
  EXPECT_THAT(operations_of(program, 1), ElementsAre(1 * kMillisecond));
}

TEST(StepProgram, BackwardTakesItsShareAndAFasterStageLess) {
  auto model = traced_chain({1e-3});
  model.trace.backward_ratio = 3;
  auto machine = ideal_machine(1);
  machine.speeds = {2};
  const auto program = compile(model.trace, {0, 0}, machine);
  EXPECT_EQ(program.operations[0].forward, 500 * kMicrosecond);
  EXPECT_EQ(program.operations[0].backward, 1500 * kMicrosecond);
}

// ---- memory ------------------------------------------------------------------------------------

/// Of one task: what it keeps until backward.
std::int64_t kept_by(const StepProgram& program, int task) {
  std::int64_t bytes = 0;
  for (int i = program.tasks[task].first; i >= 0; i = program.operations[i].next) {
    bytes += program.operations[i].callee < 0 ? program.operations[i].activation_bytes : 0;
  }
  return bytes;
}

TEST(StepProgram, EveryTaskHasItsOwnCopyOfATensorThatSeveralCallsKeep) {
  auto model = traced_chain({1e-3, 1e-3, 1e-3, 1e-3});  // each keeps a byte of its own
  model.trace.shared.push_back({100, {{1}, {2}, {3}, {4}}});
  const auto alone = compile(model.trace, {0, 0, 0, 0, 0}, ideal_machine(1));
  EXPECT_EQ(kept_by(alone, 0), 4);
  const auto cut = compile(model.trace, {0, 0, 1, 1, 2}, ideal_machine(3));
  EXPECT_EQ(kept_by(cut, 0), 1);
  EXPECT_EQ(kept_by(cut, 1), 2 + 100);
  EXPECT_EQ(kept_by(cut, 2), 1 + 100);
}

TEST(StepProgram, GradientsOfCallersOnTheSameStageWaitMeanwhile) {
  TimedModel model;
  const int root = model.call_again(0, -1, 0);
  const int block = model.call(root, 1e-3);
  const int layer = model.call(block, 1e-3);
  model.trace.calls[block].caller_gradient_bytes = 10;
  model.trace.calls[layer].caller_gradient_bytes = 200;
  model.trace.calls[layer].after.gradient_bytes = 3000;
  const auto last = [](const StepProgram& program, int task) {
    return program.operations[program.tasks[task].first].gradient_bytes;
  };
  EXPECT_EQ(last(compile(model.trace, {0, 0, 0}, ideal_machine(2)), 0), 3210);
  EXPECT_EQ(last(compile(model.trace, {0, 1, 1}, ideal_machine(2)), 1), 3200);
  EXPECT_EQ(last(compile(model.trace, {0, 0, 1}, ideal_machine(2)), 1), 3000);
}

TEST(StepProgram, ACallerKeepsWhatItMadeBeforeARequestThere) {
  TimedModel model;
  const int root = model.call_again(0, -1, 1e-3);
  const int layer = model.call(root, 1e-3);
  model.trace.calls[layer].before = {1e-3, 30, 4};
  model.trace.calls[root].after.activation_bytes = 500;
  const auto program = compile(model.trace, {0, 1}, ideal_machine(2));
  const auto& first = program.operations[program.tasks[0].first];
  EXPECT_EQ(first.activation_bytes, 30);
  EXPECT_EQ(first.gradient_bytes, 4);
  EXPECT_EQ(program.operations[program.tasks[0].last].activation_bytes, 500);
}

TEST(StepProgram, ARequestKnowsWhatIsLiveInItsCaller) {
  TimedModel model;
  const int root = model.call_again(0, -1, 0);
  const int layer = model.call(root, 1e-3);
  model.trace.calls[layer].caller_live_bytes = 10;
  model.trace.calls[layer].caller_gradient_bytes = 20;
  const auto program = compile(model.trace, {0, 1}, ideal_machine(2));
  const auto& request = program.operations[program.tasks[0].last];
  ASSERT_EQ(request.callee, 1);
  EXPECT_EQ(request.activation_bytes, 10);
  EXPECT_EQ(request.gradient_bytes, 20);
}

}  // namespace
}  // namespace smp::simulate
