// tests/server/backward/executor_test.cpp: boundaries, guards, sinks and errors of the backward
// executor.
#include "server/backward/executor.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <torch/csrc/autograd/anomaly_mode.h>

#include <stdexcept>
#include <string>
#include <thread>

#include "server/backward/executor_testing.h"
#include "smp/error.h"

namespace smp::server::test {
namespace {

using ::testing::HasSubstr;

/// Keeps what reaches the leaves.
class RecordingSink final : public GradientSink {
 public:
  void put(torch::autograd::AccumulateGrad& leaf, variable_list&& gradients) override {
    variables.push_back(leaf.variable);
    put_gradients.push_back(gradients.at(0));
  }
  void check_capture(torch::autograd::AccumulateGrad& leaf) override {
    checked.push_back(leaf.variable);
    if (refuse) throw UsageError("not this rank's parameter");
  }

  Tensors variables, put_gradients, checked;
  bool refuse = false;
};

class Executor : public WithFibers {};

// ---- local graphs ------------------------------------------------------------------------------

TEST_F(Executor, RunsALocalGraphOnAThreadWithoutFibers) {
  std::thread([] {
    const auto x = leaves(1)[0];
    EXPECT_FALSE(fiber::Scheduler::installed());
    backward((x * x).sum());
    EXPECT_TRUE(same_bits(x.grad(), x.detach() * 2));
  }).join();
}

TEST_F(Executor, SkipsRootsThatNeedNoGradient) {
  const auto x = leaves(1)[0];
  const auto y = (x * 3).sum();
  run_backward({torch::autograd::Edge{}, torch::autograd::impl::gradient_edge(y)},
               {at::ones({}), at::ones({})});
  EXPECT_TRUE(same_bits(x.grad(), at::full({4, 4}, 3.0, at::kDouble)));
}

TEST_F(Executor, CountsWhatItDid) {
  const auto x = leaves(1)[0];
  const auto twice = [](const Tensors& in) { return Tensors{in[0] * 2}; };
  const auto y = call_remotely({x}, twice)[0] + call_remotely({x}, twice)[0];
  BackwardStatistics statistics;
  backward(Engine::kOurs, {y.sum()}, {}, {}, &statistics);
  EXPECT_EQ(statistics.nodes, 5u);  // sum, +, two calls, leaf
  EXPECT_EQ(statistics.async_nodes, 2u);
  EXPECT_EQ(statistics.most_in_flight, 2);
  EXPECT_GE(statistics.parks, 1u);
}

// ---- boundaries and guards ---------------------------------------------------------------------

TEST_F(Executor, KeepsTheGradientsThatReachABoundary) {
  auto inputs = leaves(3);
  for (auto& input : inputs) input = input.detach();
  const auto boundary = make_boundary(inputs, {true, false, true});
  EXPECT_FALSE(inputs[0].is_leaf());
  EXPECT_FALSE(inputs[1].requires_grad());
  inputs[0].retain_grad();
  backward((inputs[0] * inputs[1]).sum());
  ASSERT_EQ(boundary->captured.size(), 3u);
  EXPECT_TRUE(same_bits(boundary->captured[0], inputs[1]));
  EXPECT_TRUE(same_bits(inputs[0].grad(), inputs[1]));
  EXPECT_FALSE(boundary->captured[1].defined());
  EXPECT_FALSE(boundary->captured[2].defined());
}

TEST_F(Executor, TellsUsersOfLibTorchsEngineWhatToCall) {
  const auto x = leaves(1)[0];
  const auto remote = call_remotely({x}, [](const Tensors& in) { return Tensors{in[0] * 2}; })[0];
  EXPECT_THAT(thrown_by([&] { remote.sum().backward(); }),
              HasSubstr("Call model.backward(loss) instead of loss.backward()"));
}

// ---- leaves ------------------------------------------------------------------------------------

TEST_F(Executor, GivesTheRawGradientOfALeafToTheSink) {
  const auto x = leaves(1)[0];
  int hooks = 0;
  x.register_hook([&](const at::Tensor&) { ++hooks; });
  const auto loss = (x * x).sum();
  RecordingSink sink;
  run_backward(edges_of({loss}), {at::ones({}, at::kDouble)}, {}, {}, &sink);
  ASSERT_EQ(sink.variables.size(), 1u);
  EXPECT_TRUE(sink.variables[0].is_same(x));
  EXPECT_TRUE(same_bits(sink.put_gradients[0], x.detach() * 2));
  EXPECT_EQ(hooks, 0);
  EXPECT_FALSE(x.grad().defined());
}

TEST_F(Executor, AsksTheSinkBeforeItCapturesALeaf) {
  const auto x = leaves(1)[0];
  const auto loss = (x * x).sum();
  RecordingSink sink;
  const BackwardOptions options{.keep_graph = true, .accumulate = false};
  const auto gradients =
      run_backward(edges_of({loss}), {at::ones({}, at::kDouble)}, options, edges_of({x}), &sink);
  ASSERT_EQ(sink.checked.size(), 1u);
  EXPECT_TRUE(sink.put_gradients.empty());
  EXPECT_TRUE(same_bits(gradients[0], x.detach() * 2));
  sink.refuse = true;
  EXPECT_THROW(
      run_backward(edges_of({loss}), {at::ones({}, at::kDouble)}, options, edges_of({x}), &sink),
      UsageError);
}

TEST_F(Executor, CapturesAndAccumulatesIfBothAreAskedFor) {
  const auto x = leaves(1)[0];
  const auto y = x * 2;
  const auto loss = (y * y).sum();
  const auto gradients =
      run_backward(edges_of({loss}), {at::ones({}, at::kDouble)}, {}, edges_of({y, x}));
  EXPECT_TRUE(same_bits(gradients[0], y.detach() * 2));
  EXPECT_TRUE(same_bits(gradients[1], y.detach() * 4));
  EXPECT_TRUE(same_bits(x.grad(), y.detach() * 4));
}

// ---- errors ------------------------------------------------------------------------------------

TEST_F(Executor, PassesOnWhatAHookThrows) {
  const auto x = leaves(1)[0];
  const auto y = x * 2;
  y.register_hook([](const at::Tensor&) -> at::Tensor { throw std::runtime_error("in a hook"); });
  EXPECT_THAT(thrown_by([&] { backward(y.sum()); }), HasSubstr("in a hook"));
}

TEST_F(Executor, PassesOnWhatARemoteCallThrows) {
  const auto x = leaves(1)[0];
  const auto twice = [](const Tensors& in) { return Tensors{in[0] * 2}; };
  const auto broken = call_remotely({x}, twice, {.failure = "the other rank failed"})[0];
  const auto slow = call_remotely({x}, twice, {.yields = 30})[0];
  EXPECT_THAT(thrown_by([&] { backward((broken + slow).sum()); }),
              HasSubstr("the other rank failed"));
  let_other_fibers_finish();
  EXPECT_FALSE(x.grad().defined());
}

TEST_F(Executor, FindsNanInAnomalyMode) {
  const torch::autograd::DetectAnomalyGuard anomaly;
  const auto x = leaves(1)[0];
  const auto y = (x - x).sqrt() * 0;
  EXPECT_THAT(thrown_by([&] { backward(y.sum()); }),
              HasSubstr("Function 'SqrtBackward0' returned nan values in its 0th output."));
}

TEST_F(Executor, RefusesASecondBackwardInLibTorchsWords) {
  const auto text_by = [](Engine engine, bool remote) {
    const auto p = leaves(2);
    const auto x =
        call(remote, {p[0]}, [&](const Tensors& in) { return Tensors{in[0].mm(p[1]).tanh()}; })[0];
    const auto loss = x.sum();
    backward(engine, {loss});
    return thrown_by([&] { backward(engine, {loss}); });
  };
  const auto expected = text_by(Engine::kStock, false);
  EXPECT_THAT(expected, HasSubstr("Trying to backward through the graph a second time"));
  const auto first_line = expected.substr(0, expected.find('\n'));
  EXPECT_THAT(text_by(Engine::kOurs, false), HasSubstr(first_line));
  EXPECT_THAT(text_by(Engine::kOurs, true), HasSubstr(first_line));
}

}  // namespace
}  // namespace smp::server::test
