// perf/executor.cpp: a backward pass of our executor against LibTorch's own engine, on graphs of
// about 200 nodes. Ours also meets one AsyncNode, which answers at once; LibTorch's engine runs the
// same graph without it.
#include "server/backward/executor.h"
#include "module/node_pointer.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <string>
#include <vector>

#include "harness.h"
#include "program.h"

namespace smp::perf::executor {
namespace {

using server::BackwardOptions;
using server::Completion;
using server::variable_list;
using Tensors = std::vector<at::Tensor>;

constexpr int kRounds = 201;

class ImmediateNode final : public server::AsyncNode {
 public:
  void start(variable_list&& gradients, const BackwardOptions&, Completion done) override {
    done(std::move(gradients), nullptr);
  }
};

at::Tensor behind_async_node(const at::Tensor& tensor) {
  const auto node = make_node<ImmediateNode>();
  node->set_next_edges(torch::autograd::collect_next_edges(tensor));
  auto result = tensor.detach();
  torch::autograd::set_history(result, node);
  return result;
}

/// 66 residual blocks in a row.
at::Tensor chain(const Tensors& leaves) {
  auto x = leaves[0];
  for (std::size_t i = 0; i < 66; ++i) x = x + (x * leaves[1 + i % 3]).tanh();
  return x.sum();
}

/// 10 chains side by side.
at::Tensor branches(const Tensors& leaves) {
  Tensors ends;
  for (std::size_t branch = 0; branch < 10; ++branch) {
    auto x = leaves[branch % 4];
    for (std::size_t i = 0; i < 9; ++i) x = (x * leaves[i % 4]).tanh();
    ends.push_back(x);
  }
  return at::stack(ends).sum();
}

struct Shape {
  const char* name;
  at::Tensor (*build)(const Tensors&);
};

Tensors leaves(int64_t size) {
  Tensors result;
  for (int i = 0; i < 4; ++i) result.push_back((at::randn({size, size}) * 0.1).requires_grad_());
  return result;
}

void forget_gradients(const Tensors& leaves) {
  for (const auto& leaf : leaves) leaf.mutable_grad().reset();
}

double run_stock(const Shape& shape, const Tensors& leaves) {
  forget_gradients(leaves);
  const Tensors loss = {shape.build(leaves)};
  return microseconds([&] { torch::autograd::backward(loss, {at::ones({})}); });
}

double run_ours(const Shape& shape, const Tensors& leaves,
                server::BackwardStatistics* statistics = nullptr) {
  forget_gradients(leaves);
  const auto loss = behind_async_node(shape.build(leaves));
  const server::edge_list root = {torch::autograd::impl::gradient_edge(loss)};
  return microseconds(
      [&] { server::run_backward(root, {at::ones({})}, {}, {}, nullptr, statistics); });
}

void compare(Report& report, const Shape& shape, int64_t size, std::vector<double>& ratios) {
  const auto parameters = leaves(size);
  const auto samples = alternate(
      kRounds, [&] { return run_ours(shape, parameters); },
      [&] { return run_stock(shape, parameters); });
  server::BackwardStatistics statistics;
  run_ours(shape, parameters, &statistics);
  const auto name = std::string(shape.name) + "_" + std::to_string(size);
  report.add(name + ".nodes", static_cast<double>(statistics.nodes), "1");
  report.add_samples(name + ".ours", samples.a, "us");
  report.add_samples(name + ".stock", samples.b, "us");
  report.add(name + ".ratio_to_stock", samples.ratio(), "1", "median of ratios, pair by pair");
  for (std::size_t i = 0; i < samples.a.size(); ++i) ratios.push_back(samples.a[i] / samples.b[i]);
}

void run(int /*argc*/, char** /*argv*/) {
  at::set_num_threads(1);
  Report report("executor");
  std::vector<double> ratios;
  for (const auto& shape : {Shape{"chain", chain}, Shape{"branches", branches}}) {
    for (const int64_t size : {2, 16, 64}) compare(report, shape, size, ratios);
  }
  report.add_samples("ratio_to_stock", ratios, "1", "aim: at most 1");
  report.finish();
}

const Program program{"executor", run};

}  // namespace
}  // namespace smp::perf::executor
