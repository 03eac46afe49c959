// Nodes whose gradients all come from another are started with it, and change no order of sums.
#include "server/backward/gradient_chain.h"
#include "module/node_pointer.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/backward/executor_testing.h"

namespace smp::server::test {
namespace gradient_chain_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// What a test sees of its nodes.
struct Log {
  std::vector<std::string> started, left, not_reached;
};

/// The identity of each of its arguments; answers when the test says so. Its gradients go where a
/// chain says, as between ranks.
class Link final : public AsyncNode {
 public:
  Link(std::string name, Log& log) : name_(std::move(name)), log_(log) {}

  void start(variable_list&& gradients, const BackwardOptions&, Completion done) override {
    if (refuses) throw std::runtime_error("refused by " + name_);
    log_.started.push_back(name_);
    arrived = std::move(gradients);
    done_ = std::move(done);
  }
  bool can_pass_on_to(const AsyncNode& next, const BackwardOptions&) const override {
    return dynamic_cast<const Link*>(&next) != nullptr && !stays;
  }
  void join_chain(const BackwardOptions&, Completion done) override { done_ = std::move(done); }
  void start_in_chain(variable_list&& gradients, const BackwardOptions&,
                      const Paths& paths) override {
    if (refuses) throw std::runtime_error("refused by " + name_);
    log_.started.push_back(name_ + (gradients.empty() ? " ahead" : ""));
    arrived = std::move(gradients);
    if (arrived.empty()) arrived.resize(num_inputs());
    paths_ = paths;
  }
  void leave_chain() noexcept override { log_.left.push_back(name_); }
  bool has_passed_on(std::uint32_t output) const override {
    return std::find(went_.begin(), went_.end(), output) != went_.end();
  }
  void not_reached() noexcept override { log_.not_reached.push_back(name_); }
  std::string name() const override { return name_; }

  void answer() {
    variable_list gradients(num_outputs());
    if (!uses_nothing) std::copy(arrived.begin(), arrived.end(), gradients.begin());
    for (const auto& path : paths_.out) {
      auto& gradient = gradients.at(path.output);
      if (gradient.defined()) went_.push_back(path.output);
      static_cast<Link*>(path.next)->arrived.at(path.input) = std::exchange(gradient, {});
    }
    done_(std::move(gradients), nullptr);
  }

  variable_list arrived;
  bool stays = false, refuses = false, uses_nothing = false;

 private:
  const std::string name_;
  Log& log_;
  Completion done_;
  Paths paths_;
  std::vector<std::uint32_t> went_;
};

class GradientChain : public WithFibers {
 protected:
  NodePointer<Link> link(const std::string& name) { return make_node<Link>(name, log_); }
  /// `inputs` behind `node`, unchanged in value.
  static Tensors behind(const Tensors& inputs, const NodePointer<Link>& node) {
    node->set_next_edges(torch::autograd::collect_next_edges(inputs));
    Tensors outputs;
    for (const auto& input : inputs) {
      outputs.push_back(input.detach());
      torch::autograd::set_history(outputs.back(), node);
    }
    return outputs;
  }
  static at::Tensor behind(const at::Tensor& input, const NodePointer<Link>& node) {
    return behind(Tensors{input}, node)[0];
  }
  /// On another fiber, one after the other.
  static void answer(std::vector<NodePointer<Link>> nodes) {
    fiber::Scheduler::install().spawn(
        [nodes] {
          for (const auto& node : nodes) {
            node->answer();
            fiber::Scheduler::instance().yield();
          }
        },
        base::FiberSlots{}, 1 << 20);
  }

  Log log_;
};

TEST_F(GradientChain, IsStartedAtOnce) {
  const auto x = leaves(1)[0];
  const auto a = link("a"), b = link("b"), c = link("c");
  const auto loss = behind(behind(behind(x, a), b), c).sum();
  answer({c, b, a});
  backward(loss);
  EXPECT_THAT(log_.started, ElementsAre("c", "b ahead", "a ahead"));
  EXPECT_TRUE(same_bits(x.grad(), at::ones({4, 4}, at::kDouble)));
}

TEST_F(GradientChain, MayAnswerInAnyOrder) {
  const auto x = leaves(1)[0];
  const auto a = link("a"), b = link("b");
  const auto loss = behind(Tensors{behind(x, a)}, b)[0].sum();
  fiber::Scheduler::install().spawn(
      [&] {
        b->arrived[0] = b->arrived[0] * 1;
        a->arrived[0] = b->arrived[0];
        a->answer();
        b->answer();
      },
      base::FiberSlots{}, 1 << 20);
  backward(loss);
  EXPECT_TRUE(same_bits(x.grad(), at::ones({4, 4}, at::kDouble)));
}

TEST_F(GradientChain, BranchesAndGoesThroughSeveralArguments) {
  const auto x = leaves(3);
  const auto a = link("a"), b = link("b"), c = link("c");
  const auto left = behind(Tensors{x[0], x[1]}, a);
  const auto right = behind(x[2], b);
  const auto joined = behind(Tensors{left[1], right, left[0]}, c);
  answer({c, b, a});
  backward((joined[0] + 2 * joined[1] + 3 * joined[2]).sum());
  EXPECT_EQ(log_.started.size(), 3u);
  EXPECT_EQ(log_.started[0], "c");
  EXPECT_EQ(x[0].grad()[0][0].item<double>(), 3);
  EXPECT_EQ(x[1].grad()[0][0].item<double>(), 1);
  EXPECT_EQ(x[2].grad()[0][0].item<double>(), 2);
}

/// What anybody else has a part in, or looks at, comes here.
TEST_F(GradientChain, EndsWhereAGradientIsNeededHere) {
  const auto x = leaves(1)[0];
  const auto expect_apart = [&](const char* why, auto&& prepare, bool twice = false) {
    SCOPED_TRACE(why);
    log_ = {};
    const auto a = link("a"), b = link("b");
    auto y = behind(x, a);
    const auto z = twice ? behind(Tensors{y, y}, b)[0] : behind(y, b);
    auto loss = z.sum();
    prepare(y, *a, *b, loss);
    answer({b, a});
    backward(loss);
    EXPECT_THAT(log_.started, ElementsAre("b", "a"));
  };
  const auto nothing = [](auto&, auto&, auto&, auto&) {};
  expect_apart("added to another",
               [](auto& y, auto&, auto&, auto& loss) { loss = loss + y.sum(); });
  expect_apart("one input twice", nothing, /*twice=*/true);
  expect_apart("hooked", [](auto& y, auto&, auto&, auto&) {
    y.register_hook([](const at::Tensor& gradient) { return gradient * 2; });
  });
  expect_apart("retained", [](auto& y, auto&, auto&, auto&) { y.retain_grad(); });
  expect_apart("cannot leave", [](auto&, auto&, Link& b, auto&) { b.stays = true; });
}

TEST_F(GradientChain, EndsAtACapture) {
  const auto x = leaves(1)[0];
  const auto a = link("a"), b = link("b");
  const auto y = behind(x, a);
  const auto loss = behind(y, b).sum();
  answer({b, a});
  const auto gradients = grad(Engine::kOurs, {loss}, {y, x});
  EXPECT_THAT(log_.started, ElementsAre("b", "a"));
  EXPECT_TRUE(gradients[0].defined() && gradients[1].defined());
}

/// One process would not get there either.
TEST_F(GradientChain, WhatNoGradientReachesIsNotReached) {
  const auto x = leaves(1)[0];
  const auto a = link("a"), b = link("b");
  b->uses_nothing = true;
  bool called = false;
  const auto below = x * 2;
  below.register_hook([&](const at::Tensor&) { called = true; });
  const auto loss = behind(behind(below, a), b).sum();
  answer({b, a});
  backward(loss);
  EXPECT_THAT(log_.started, ElementsAre("b", "a ahead"));
  EXPECT_THAT(log_.not_reached, ElementsAre("a"));
  EXPECT_FALSE(called);
  EXPECT_FALSE(x.grad().defined());
}

/// With the answer of `b` two nodes are reached: `a`, which was started ahead and has answered, and
/// `c`. Without chains `c`, made later, would be started first, so its answer still comes first.
TEST_F(GradientChain, KeepsTheOrderOfReplies) {
  const auto x = leaves(1)[0];
  const auto a = link("a"), b = link("b"), c = link("c");
  std::vector<std::string> order;
  const auto below_a = x * 2, below_c = x * 3;
  below_a.register_hook([&](const at::Tensor&) { order.push_back("below a"); });
  below_c.register_hook([&](const at::Tensor&) { order.push_back("below c"); });
  const auto of_c = behind(below_c, c) * 1;  // no chain: another node lies between
  const auto both = behind(Tensors{behind(below_a, a), of_c}, b);
  answer({b, a, c});
  backward((both[0] + both[1]).sum());
  EXPECT_THAT(log_.started, ElementsAre("b", "a ahead", "c"));
  EXPECT_THAT(order, ElementsAre("below c", "below a"));
}

TEST_F(GradientChain, ThatCannotBeStartedIsLeft) {
  const auto x = leaves(1)[0];
  const auto a = link("a"), b = link("b"), c = link("c");
  b->refuses = true;
  const auto loss = behind(behind(behind(x, a), b), c).sum();
  EXPECT_THAT(thrown_by([&] { backward(loss); }), HasSubstr("refused by b"));
  EXPECT_THAT(log_.left, ElementsAre("b", "a"));
}

}  // namespace gradient_chain_test
}  // namespace smp::server::test
