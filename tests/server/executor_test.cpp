// tests/server/executor_test.cpp: asynchronous nodes, boundaries, guards, sinks and errors of the
// backward executor.
#include "server/executor.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/graph_task.h>

#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "server/executor_testing.h"
#include "smp/error.h"

namespace smp::server::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::size_t kStackBytes = 1 << 20;

/// `input` behind `node`, unchanged in value.
at::Tensor behind(const at::Tensor& input, const c10::intrusive_ptr<Node>& node) {
  node->set_next_edges(torch::autograd::collect_next_edges(input));
  auto output = input.detach();
  torch::autograd::set_history(output, node);
  return output;
}

/// An identity whose answer the test gives by hand.
class ManualNode final : public AsyncNode {
 public:
  void start(variable_list&& gradients, const BackwardOptions&, Completion done) override {
    arrived = std::move(gradients);
    complete = std::move(done);
  }
  void answer() { complete(variable_list(arrived), nullptr); }
  void fail(const char* text) { complete({}, std::make_exception_ptr(std::runtime_error(text))); }
  base::WaitReason wait_reason() const override { return {"a hand-made answer", "block", 2, 5}; }
  std::string name() const override { return "ManualNode"; }

  variable_list arrived;
  Completion complete;
};

/// An identity that runs `inside` while it is applied.
class ProbeNode final : public Node {
 public:
  explicit ProbeNode(std::function<void()> inside) : inside_(std::move(inside)) {}
  variable_list apply(variable_list&& gradients) override {
    inside_();
    return std::move(gradients);
  }

 private:
  std::function<void()> inside_;
};

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

void spawn(std::function<void()> body) {
  base::FiberScheduler::install().spawn(std::move(body), nullptr, kStackBytes);
}

class Executor : public ::testing::Test {
 protected:
  void SetUp() override { base::FiberScheduler::install(); }
  void TearDown() override { let_other_fibers_finish(); }
};

// ---- local graphs -----------------------------------------------------------------------------

TEST_F(Executor, RunsALocalGraphOnAThreadWithoutFibers) {
  std::thread([] {
    const auto x = leaves(1)[0];
    EXPECT_FALSE(base::FiberScheduler::installed());
    backward((x * x).sum());
    EXPECT_TRUE(same_bits(x.grad(), x.detach() * 2));
  }).join();
}

TEST_F(Executor, RunsNodesItselfNotThroughLibTorchsEngine) {
  const auto x = leaves(1)[0];
  int applied = 0;
  const auto probe = c10::make_intrusive<ProbeNode>([&] {
    ++applied;
    EXPECT_EQ(torch::autograd::get_current_graph_task_id(), -1);
    EXPECT_TRUE(inside_node());
  });
  backward(behind(x, probe).sum());
  EXPECT_EQ(applied, 1);
  EXPECT_FALSE(inside_node());
}

TEST_F(Executor, KnowsThatLibTorchsEngineIsInsideANode) {
  const auto x = leaves(1)[0];
  bool inside = false;
  const auto probe = c10::make_intrusive<ProbeNode>([&] { inside = inside_node(); });
  backward(Engine::kStock, {behind(x, probe).sum()});
  EXPECT_TRUE(inside);
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

// ---- asynchronous nodes -----------------------------------------------------------------------

TEST_F(Executor, ConsumesRepliesInTheOrderOfStarting) {
  const auto x = leaves(1)[0];
  const auto a = c10::make_intrusive<ManualNode>(), b = c10::make_intrusive<ManualNode>();
  const auto left = x * 2, right = x * 3;
  std::vector<std::string> order;
  left.register_hook([&](const at::Tensor&) { order.push_back("left"); });
  right.register_hook([&](const at::Tensor&) { order.push_back("right"); });
  const auto loss = (behind(left, a) + behind(right, b)).sum();
  spawn([&] {  // b, made last, is started first, but answers last
    a->answer();
    base::FiberScheduler::instance().yield();
    EXPECT_TRUE(order.empty());
    b->answer();
  });
  backward(loss);
  EXPECT_THAT(order, ElementsAre("right", "left"));
}

TEST_F(Executor, RunsReadyLocalNodesBeforeItTakesAReply) {
  const auto x = leaves(1)[0];
  const auto local = x * 2, remote = x * 5;
  std::vector<std::string> order;
  local.register_hook([&](const at::Tensor&) { order.push_back("local"); });
  remote.register_hook([&](const at::Tensor&) { order.push_back("below the call"); });
  c10::intrusive_ptr<ManualNode> node;
  const auto probe = c10::make_intrusive<ProbeNode>([&] { node->answer(); });
  node = c10::make_intrusive<ManualNode>();  // made last, so started first
  backward((behind(local, probe) + behind(remote, node)).sum());
  EXPECT_THAT(order, ElementsAre("local", "below the call"));
}

TEST_F(Executor, TellsWhatAParkedPassWaitsFor) {
  const auto x = leaves(1)[0];
  const auto node = c10::make_intrusive<ManualNode>();
  const auto loss = behind(x, node).sum();
  std::vector<std::string> report;
  spawn([&] {
    report = base::FiberScheduler::instance().waiting_report();
    node->answer();
  });
  backward(loss);
  ASSERT_EQ(report.size(), 1u);
  EXPECT_THAT(report[0], HasSubstr("a hand-made answer of block on rank 2, microbatch 5"));
}

TEST_F(Executor, LetsErrorsJumpTheQueueOfReplies) {
  const auto x = leaves(1)[0];
  const auto a = c10::make_intrusive<ManualNode>(), b = c10::make_intrusive<ManualNode>();
  const auto loss = (behind(x * 2, a) + behind(x * 3, b)).sum();
  spawn([&] { a->fail("the later one failed"); });  // b was started first and never answers
  EXPECT_THAT(thrown_by([&] { backward(loss); }), HasSubstr("the later one failed"));
}

TEST_F(Executor, IgnoresRepliesAfterAnError) {
  const auto a = c10::make_intrusive<ManualNode>(), b = c10::make_intrusive<ManualNode>();
  const auto x = leaves(1)[0];
  {
    const auto loss = (behind(x * 2, a) + behind(x * 3, b)).sum();
    spawn([&] { a->fail("no"); });
    EXPECT_THAT(thrown_by([&] { backward(loss); }), HasSubstr("no"));
  }
  b->answer();
  a->answer();
  EXPECT_FALSE(x.grad().defined());
  backward((x * x).sum());
  EXPECT_TRUE(same_bits(x.grad(), x.detach() * 2));
}

TEST_F(Executor, RefusesASecondAnswer) {
  const auto x = leaves(1)[0];
  const auto a = c10::make_intrusive<ManualNode>(), b = c10::make_intrusive<ManualNode>();
  const auto loss = (behind(x * 2, a) + behind(x * 3, b)).sum();
  spawn([&] {
    a->answer();
    EXPECT_THROW(a->answer(), InternalError);
    b->answer();
  });
  backward(loss);
}

TEST_F(Executor, PassesOnWhatStartThrows) {
  class Broken final : public AsyncNode {
    void start(variable_list&&, const BackwardOptions&, Completion) override {
      throw std::runtime_error("cannot send");
    }
  };
  const auto x = leaves(1)[0];
  const auto loss = behind(x, c10::make_intrusive<Broken>()).sum();
  EXPECT_THAT(thrown_by([&] { backward(loss); }), HasSubstr("cannot send"));
}

TEST_F(Executor, ChecksTheNumberOfGradientsOfAnAnswer) {
  const auto x = leaves(1)[0];
  const auto node = c10::make_intrusive<ManualNode>();
  const auto loss = behind(x, node).sum();
  spawn([&] { node->complete({}, nullptr); });
  EXPECT_THAT(
      thrown_by([&] { backward(loss); }),
      HasSubstr("Function ManualNode returned an invalid number of gradients - expected 1"));
}

TEST_F(Executor, NeverSuspendsInsideANode) {
  const auto x = leaves(1)[0], y = leaves(1, 2)[0];
  const auto twice = [](const Tensors& in) { return Tensors{in[0] * 2}; };
  const auto inner = call_remotely({y}, twice)[0].sum();
  for (const auto engine : {Engine::kOurs, Engine::kStock}) {
    const auto probe = c10::make_intrusive<ProbeNode>([&] { backward(inner); });
    EXPECT_THAT(thrown_by([&] { backward(engine, {behind(x, probe).sum()}); }),
                HasSubstr("cannot wait for a backward reply of DelayedNode"));
  }
}

TEST_F(Executor, RunsALocalGraphInsideANode) {
  const auto x = leaves(1)[0], y = leaves(1, 2)[0];
  const auto inner = (y * 2).sum();
  const auto probe = c10::make_intrusive<ProbeNode>([&] { backward(inner); });
  backward(behind(x, probe).sum());
  EXPECT_TRUE(same_bits(y.grad(), at::full({4, 4}, 2.0, at::kDouble)));
  EXPECT_TRUE(same_bits(x.grad(), at::ones({4, 4}, at::kDouble)));
}

TEST_F(Executor, MaySuspendInsideATensorHook) {
  const auto x = leaves(1)[0], y = leaves(1, 2)[0];
  const auto twice = [](const Tensors& in) { return Tensors{in[0] * 2}; };
  const auto inner = call_remotely({y}, twice)[0].sum();
  const auto outer = x * 3;
  outer.register_hook([&](const at::Tensor&) { backward(inner); });
  backward(outer.sum());
  EXPECT_TRUE(same_bits(y.grad(), at::full({4, 4}, 2.0, at::kDouble)));
  EXPECT_TRUE(same_bits(x.grad(), at::full({4, 4}, 3.0, at::kDouble)));
}

TEST_F(Executor, SaysThatAThreadWithoutFibersCannotWait) {
  std::thread([] {
    const auto x = leaves(1)[0];
    const auto loss = behind(x, c10::make_intrusive<ManualNode>()).sum();
    EXPECT_THAT(thrown_by([&] { backward(loss); }), HasSubstr("no fiber scheduler"));
  }).join();
}

TEST_F(Executor, HandsTheInputsOfAnAsyncNodeToItsPostHooks) {
  struct Double final : torch::autograd::FunctionPostHook {
    variable_list operator()(const variable_list& outputs, const variable_list& inputs) override {
      return {outputs[0] + inputs[0]};
    }
  };
  const auto x = leaves(1)[0];
  const auto node = c10::make_intrusive<ManualNode>();
  const auto loss = behind(x, node).sum();
  node->add_post_hook(std::make_unique<Double>());
  spawn([&] { node->answer(); });
  backward(loss);
  EXPECT_TRUE(same_bits(x.grad(), at::full({4, 4}, 2.0, at::kDouble)));
}

// ---- boundaries and guards --------------------------------------------------------------------

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

TEST_F(Executor, PassesGradientsThroughAGuard) {
  const auto x = leaves(1)[0];
  const auto y = x * 2;
  const auto guarded = guard_output(y);
  EXPECT_EQ(guarded.data_ptr(), y.data_ptr());
  EXPECT_EQ(guarded.grad_fn()->name(), "SmpGuard");
  guarded.register_hook([](const at::Tensor& gradient) { return gradient * 10; });
  backward(guarded.sum());
  EXPECT_TRUE(same_bits(x.grad(), at::full({4, 4}, 20.0, at::kDouble)));
}

TEST_F(Executor, GuardsOnlyWhatRequiresGrad) {
  const auto x = at::ones({2});
  EXPECT_TRUE(guard_output(x).is_same(x));
  EXPECT_FALSE(guard_output(at::Tensor()).defined());
}

TEST_F(Executor, AllowsInPlaceOperationsOnGuardedOutputs) {
  const auto by = [](bool guarded) {
    const auto x = leaves(1)[0];
    auto y = x.sin();
    if (guarded) y = guard_output(y);
    y.mul_(3);
    y.narrow(0, 1, 2).add_(1);
    backward(y.pow(2).sum());
    return x.grad();
  };
  EXPECT_TRUE(same_bits(by(false), by(true)));
}

TEST_F(Executor, TellsUsersOfLibTorchsEngineWhatToCall) {
  const auto x = leaves(1)[0];
  const auto guarded = (guard_output(x * 2) * 3).sum();
  EXPECT_THROW(guarded.backward(), UsageError);
  EXPECT_THAT(thrown_by([&] { guarded.backward(); }),
              HasSubstr("Call model.backward(loss) instead of loss.backward()"));
  const auto remote = call_remotely({x}, [](const Tensors& in) { return Tensors{in[0] * 2}; })[0];
  EXPECT_THAT(thrown_by([&] { remote.sum().backward(); }), HasSubstr("model.backward(loss)"));
}

// ---- leaves -----------------------------------------------------------------------------------

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

// ---- errors -----------------------------------------------------------------------------------

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
}  // namespace smp::server::testing
