// A program of a few lines, run by ranks and by LibTorch alone: a layer, a remote module that does
// what the test says, and a body that uses what it returns.
#pragma once

#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "api/far_model.h"
#include "api/two_ranks.h"

namespace smp::small_programs {

using Tensors = std::vector<at::Tensor>;

struct ElsewhereImpl : torch::nn::Module {
  using Act = std::function<Tensors(ElsewhereImpl&, Tensors)>;
  explicit ElsewhereImpl(Act act)
      : weight(register_parameter("weight", torch::linspace(0.5, 1.5, 4, torch::kDouble))),
        state(register_buffer("state", torch::zeros({64, 64}, torch::kDouble))),
        act_(std::move(act)) {}
  Tensors forward(Tensors in) { return act_(*this, std::move(in)); }
  at::Tensor weight;
  at::Tensor state;

 private:
  Act act_;
};
SMP_MODULE(Elsewhere);

/// h = linear(x) is [rows, 4] and no leaf; the body makes a loss of it.
struct SmallNetImpl : torch::nn::Module {
  using Body = std::function<at::Tensor(at::Tensor h, Elsewhere& elsewhere)>;
  SmallNetImpl(ElsewhereImpl::Act act, Body body)
      : linear(register_module("linear", torch::nn::Linear(3, 4))),
        elsewhere(register_module("elsewhere", Elsewhere(std::move(act)))),
        body_(std::move(body)) {
    to(torch::kDouble);
  }
  at::Tensor forward(const at::Tensor& x) { return body_(linear(x), elsewhere); }
  torch::nn::Linear linear;
  Elsewhere elsewhere;

 private:
  Body body_;
};
SMP_MODULE(SmallNet);

struct Program {
  ElsewhereImpl::Act act;
  SmallNetImpl::Body body;
  bool grad = true;
};

inline SmallNet make_net(const Program& program) {
  torch::manual_seed(5);
  return SmallNet(program.act, program.body);
}

/// "loss 0", "grad 1 linear.weight", "linear.weight"
using Results = std::map<std::string, at::Tensor>;
inline constexpr int kProgramSteps = 2;

inline void note(Results& results, const std::string& name, const at::Tensor& tensor) {
  results[name] = tensor.defined() ? tensor.detach().clone() : at::Tensor();
}

/// LibTorch alone, with its own engine.
inline Results run_alone(const Program& program, int microbatches) {
  Results results;
  auto net = make_net(program);
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  const at::AutoGradMode mode(program.grad);
  const auto batch = rows(2 * microbatches);
  for (int step = 0; step < kProgramSteps; ++step) {
    optimizer.zero_grad();
    auto total = torch::zeros({}, torch::kDouble);
    for (int m = 0; m < microbatches; ++m) {
      const auto loss = net->forward(batch.narrow(0, 2 * m, 2).clone());
      if (program.grad) (loss / microbatches).backward();
      total += loss.detach() / microbatches;
    }
    note(results, "loss " + std::to_string(step), total);
    for (const auto& item : net->named_parameters()) {
      note(results, "grad " + std::to_string(step) + " " + item.key(), item.value().grad());
    }
    if (program.grad) optimizer.step();
  }
  for (const auto& item : net->named_parameters()) note(results, item.key(), item.value());
  return results;
}

/// One rank's part; `elsewhere` lives on the last rank.
inline Results run_on_this_rank(const Program& program) {
  Results results;
  const auto net = make_net(program);
  DistributedModel<SmallNet> model(net);
  model.set_partition("", 0);
  model.set_partition("elsewhere", size() - 1);
  DistributedOptimizer optimizer(
      model, torch::optim::SGD(model.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9)));
  const at::AutoGradMode mode(program.grad);
  auto train = smp::step([&](at::Tensor x) {
    auto loss = model(x);
    if (program.grad) model.backward(loss);
    return loss;
  });
  for (int step = 0; step < kProgramSteps; ++step) {
    optimizer.zero_grad();
    note(results, "loss " + std::to_string(step), train(rows(4)).reduce_mean());
    for (const auto& [name, parameter] : model.local_named_parameters()) {
      note(results, "grad " + std::to_string(step) + " " + name, parameter.grad());
    }
    if (program.grad) optimizer.step();
  }
  for (const auto& [name, parameter] : model.local_named_parameters()) {
    note(results, name, parameter);
  }
  return results;
}

inline void expect_same(const Results& ours, const Results& reference) {
  for (const auto& [name, tensor] : ours) {
    ASSERT_EQ(reference.count(name), 1u) << name;
    const auto& expected = reference.at(name);
    ASSERT_EQ(tensor.defined(), expected.defined()) << name;
    if (tensor.defined()) {
      EXPECT_TRUE(at::allclose(tensor.to_dense(), expected.to_dense(), 1e-12, 1e-13)) << name;
    }
  }
}

/// The same numbers as alone, on one to three ranks, under several seeds.
inline void expect_as_alone(const Program& program) {
  const auto reference = run_alone(program, 2);
  for (int ranks = 1; ranks <= 3; ++ranks) {
    for (std::uint64_t seed = 1; seed <= 2; ++seed) {
      SCOPED_TRACE(testing::Message() << ranks << " ranks, seed " << seed);
      on_ranks(
          ranks, [&] { expect_same(run_on_this_rank(program), reference); }, 2, seed);
    }
  }
}

}  // namespace smp::small_programs
