// tests/server/backward/executor_nodes_test.cpp: nodes that answer later, and what may happen
// inside a node.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/graph_task.h>

#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "module/node_pointer.h"
#include "server/backward/executor.h"
#include "server/backward/executor_testing.h"
#include "server/running/inside_node.h"
#include "smp/error.h"

namespace smp::server::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::size_t kStackBytes = 1 << 20;

/// `input` behind `node`, unchanged in value.
at::Tensor behind(const at::Tensor& input, const NodePointer<Node>& node) {
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
  fiber::WaitReason wait_reason() const override { return {"a hand-made answer", "block", 2, 5}; }
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

void spawn(std::function<void()> body) {
  fiber::Scheduler::install().spawn(std::move(body), base::FiberSlots{}, kStackBytes);
}

class ExecutorNodes : public WithFibers {};

// ---- answers -----------------------------------------------------------------------------------

TEST_F(ExecutorNodes, ConsumesRepliesInTheOrderOfStarting) {
  const auto x = leaves(1)[0];
  const auto a = make_node<ManualNode>(), b = make_node<ManualNode>();
  const auto left = x * 2, right = x * 3;
  std::vector<std::string> order;
  left.register_hook([&](const at::Tensor&) { order.push_back("left"); });
  right.register_hook([&](const at::Tensor&) { order.push_back("right"); });
  const auto loss = (behind(left, a) + behind(right, b)).sum();
  spawn([&] {  // b, made last, is started first, but answers last
    a->answer();
    fiber::Scheduler::instance().yield();
    EXPECT_TRUE(order.empty());
    b->answer();
  });
  backward(loss);
  EXPECT_THAT(order, ElementsAre("right", "left"));
}

TEST_F(ExecutorNodes, RunsReadyLocalNodesBeforeItTakesAReply) {
  const auto x = leaves(1)[0];
  const auto local = x * 2, remote = x * 5;
  std::vector<std::string> order;
  local.register_hook([&](const at::Tensor&) { order.push_back("local"); });
  remote.register_hook([&](const at::Tensor&) { order.push_back("below the call"); });
  NodePointer<ManualNode> node;
  const auto probe = make_node<ProbeNode>([&] { node->answer(); });
  node = make_node<ManualNode>();  // made last, so started first
  backward((behind(local, probe) + behind(remote, node)).sum());
  EXPECT_THAT(order, ElementsAre("local", "below the call"));
}

TEST_F(ExecutorNodes, TellsWhatAParkedPassWaitsFor) {
  const auto x = leaves(1)[0];
  const auto node = make_node<ManualNode>();
  const auto loss = behind(x, node).sum();
  std::vector<std::string> report;
  spawn([&] {
    report = fiber::Scheduler::instance().waiting_report();
    node->answer();
  });
  backward(loss);
  ASSERT_EQ(report.size(), 1u);
  EXPECT_THAT(report[0], HasSubstr("a hand-made answer of block on rank 2, microbatch 5"));
}

TEST_F(ExecutorNodes, LetsErrorsJumpTheQueueOfReplies) {
  const auto x = leaves(1)[0];
  const auto a = make_node<ManualNode>(), b = make_node<ManualNode>();
  const auto loss = (behind(x * 2, a) + behind(x * 3, b)).sum();
  spawn([&] { a->fail("the later one failed"); });  // b was started first and never answers
  EXPECT_THAT(thrown_by([&] { backward(loss); }), HasSubstr("the later one failed"));
}

TEST_F(ExecutorNodes, IgnoresRepliesAfterAnError) {
  const auto a = make_node<ManualNode>(), b = make_node<ManualNode>();
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

TEST_F(ExecutorNodes, RefusesASecondAnswer) {
  const auto x = leaves(1)[0];
  const auto a = make_node<ManualNode>(), b = make_node<ManualNode>();
  const auto loss = (behind(x * 2, a) + behind(x * 3, b)).sum();
  spawn([&] {
    a->answer();
    EXPECT_THROW(a->answer(), InternalError);
    b->answer();
  });
  backward(loss);
}

TEST_F(ExecutorNodes, PassesOnWhatStartThrows) {
  class Broken final : public AsyncNode {
    void start(variable_list&&, const BackwardOptions&, Completion) override {
      throw std::runtime_error("cannot send");
    }
  };
  const auto x = leaves(1)[0];
  const auto loss = behind(x, make_node<Broken>()).sum();
  EXPECT_THAT(thrown_by([&] { backward(loss); }), HasSubstr("cannot send"));
}

TEST_F(ExecutorNodes, ChecksTheNumberOfGradientsOfAnAnswer) {
  const auto x = leaves(1)[0];
  const auto node = make_node<ManualNode>();
  const auto loss = behind(x, node).sum();
  spawn([&] { node->complete({}, nullptr); });
  EXPECT_THAT(
      thrown_by([&] { backward(loss); }),
      HasSubstr("Function ManualNode returned an invalid number of gradients - expected 1"));
}

TEST_F(ExecutorNodes, SaysThatAThreadWithoutFibersCannotWait) {
  std::thread([] {
    const auto x = leaves(1)[0];
    const auto loss = behind(x, make_node<ManualNode>()).sum();
    EXPECT_THAT(thrown_by([&] { backward(loss); }), HasSubstr("no fiber scheduler"));
  }).join();
}

TEST_F(ExecutorNodes, HandsTheInputsOfAnAsyncNodeToItsPostHooks) {
  struct Double final : torch::autograd::FunctionPostHook {
    variable_list operator()(const variable_list& outputs, const variable_list& inputs) override {
      return {outputs[0] + inputs[0]};
    }
  };
  const auto x = leaves(1)[0];
  const auto node = make_node<ManualNode>();
  const auto loss = behind(x, node).sum();
  node->add_post_hook(std::make_unique<Double>());
  spawn([&] { node->answer(); });
  backward(loss);
  EXPECT_TRUE(same_bits(x.grad(), at::full({4, 4}, 2.0, at::kDouble)));
}

// ---- inside a node -----------------------------------------------------------------------------

TEST_F(ExecutorNodes, RunsNodesItselfNotThroughLibTorchsEngine) {
  const auto x = leaves(1)[0];
  int applied = 0;
  const auto probe = make_node<ProbeNode>([&] {
    ++applied;
    EXPECT_EQ(torch::autograd::get_current_graph_task_id(), -1);
    EXPECT_TRUE(inside_node());
  });
  backward(behind(x, probe).sum());
  EXPECT_EQ(applied, 1);
  EXPECT_FALSE(inside_node());
}

TEST_F(ExecutorNodes, KnowsThatLibTorchsEngineIsInsideANode) {
  const auto x = leaves(1)[0];
  bool inside = false;
  const auto probe = make_node<ProbeNode>([&] { inside = inside_node(); });
  backward(Engine::kStock, {behind(x, probe).sum()});
  EXPECT_TRUE(inside);
}

TEST_F(ExecutorNodes, NeverSuspendsInsideANode) {
  const auto x = leaves(1)[0], y = leaves(1, 2)[0];
  const auto twice = [](const Tensors& in) { return Tensors{in[0] * 2}; };
  const auto inner = call_remotely({y}, twice)[0].sum();
  for (const auto engine : {Engine::kOurs, Engine::kStock}) {
    const auto probe = make_node<ProbeNode>([&] { backward(inner); });
    EXPECT_THAT(thrown_by([&] { backward(engine, {behind(x, probe).sum()}); }),
                HasSubstr("cannot wait for a backward reply of DelayedNode"));
  }
}

TEST_F(ExecutorNodes, RunsALocalGraphInsideANode) {
  const auto x = leaves(1)[0], y = leaves(1, 2)[0];
  const auto inner = (y * 2).sum();
  const auto probe = make_node<ProbeNode>([&] { backward(inner); });
  backward(behind(x, probe).sum());
  EXPECT_TRUE(same_bits(y.grad(), at::full({4, 4}, 2.0, at::kDouble)));
  EXPECT_TRUE(same_bits(x.grad(), at::ones({4, 4}, at::kDouble)));
}

TEST_F(ExecutorNodes, MaySuspendInsideATensorHook) {
  const auto x = leaves(1)[0], y = leaves(1, 2)[0];
  const auto twice = [](const Tensors& in) { return Tensors{in[0] * 2}; };
  const auto inner = call_remotely({y}, twice)[0].sum();
  const auto outer = x * 3;
  outer.register_hook([&](const at::Tensor&) { backward(inner); });
  backward(outer.sum());
  EXPECT_TRUE(same_bits(y.grad(), at::full({4, 4}, 2.0, at::kDouble)));
  EXPECT_TRUE(same_bits(x.grad(), at::full({4, 4}, 3.0, at::kDouble)));
}

}  // namespace
}  // namespace smp::server::test
