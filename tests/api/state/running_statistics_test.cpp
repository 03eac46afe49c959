// Running statistics of plain layers are committed in program order, wherever their block runs and
// whatever calls it (docs/design.md, Buffers).
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/instancenorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <functional>
#include <map>
#include <optional>
#include <string>

#include "api/state/buffers_testing.h"

namespace smp::buffer_tests {
namespace running_statistics_test {

// Plain layers inside a routed block, with a module elsewhere between their calls.
struct NormBlockImpl : torch::nn::Module {
  explicit NormBlockImpl(std::optional<double> momentum)
      : inner(register_module("inner", nn::Linear(4, 4))),
        norm(register_module(
            "norm", torch::nn::BatchNorm1d(torch::nn::BatchNorm1dOptions(4).momentum(momentum)))),
        frozen(register_module("frozen", torch::nn::BatchNorm1d(4))),
        stack(register_module(
            "stack", torch::nn::Sequential(
                         torch::nn::Linear(4, 4),
                         torch::nn::BatchNorm1d(torch::nn::BatchNorm1dOptions(4).momentum(0.4))))),
        instance(register_module(
            "instance", torch::nn::InstanceNorm1d(
                            torch::nn::InstanceNorm1dOptions(2).track_running_stats(true)))) {
    frozen->eval();
  }
  Tensor forward(const Tensor& x) {
    auto y = inner(norm(x) + 0.1 * x).tanh();
    y = frozen(norm(y * 2 + x));
    y = y + inner(instance(y.reshape({-1, 2, 2})).reshape({-1, 4}));
    return stack->forward(y) + x;
  }
  nn::Linear inner;
  torch::nn::BatchNorm1d norm, frozen;
  torch::nn::Sequential stack;
  torch::nn::InstanceNorm1d instance;
};
SMP_MODULE(NormBlock);

struct NormsImpl : torch::nn::Module {
  NormsImpl()
      : first(register_module("first", NormBlock(0.3))),
        second(register_module("second", NormBlock(std::nullopt))),
        own(register_module("own", torch::nn::BatchNorm1d(4))) {
    widen(*this);
  }
  Tensor forward(const Tensor& x) { return first(second(own(first(own(x))) + x)); }
  NormBlock first, second;
  torch::nn::BatchNorm1d own;
};
SMP_MODULE(Norms);
struct PlainNormsImpl : NormsImpl {};
TORCH_MODULE(PlainNorms);

const std::map<std::string, int> kNormPins{
    {"first", 1}, {"first.inner", 2}, {"second", 3}, {"second.inner", 0}};

TEST(RunningStatistics, OfPlainNormalisationsInARoutedBlockAreCommittedInProgramOrder) {
  expect_trained<Norms>([] { return Norms(); }, kNormPins);
}

TEST(RunningStatistics, OfPlainNormalisationsInAPlainRootToo) {
  expect_trained<PlainNorms>([] { return PlainNorms(); }, kNormPins);
}

// A block that calls itself through another module.
struct RecursiveImpl : torch::nn::Module {
  RecursiveImpl()
      : norm(register_module("norm", torch::nn::BatchNorm1d(4))),
        linear(register_module("linear", nn::Linear(4, 4))) {
    widen(*this);
  }
  Tensor forward(const Tensor& x, int depth);
  torch::nn::BatchNorm1d norm;
  nn::Linear linear;
  std::function<Tensor(const Tensor&, int)> again;
};
SMP_MODULE(Recursive);
Tensor RecursiveImpl::forward(const Tensor& x, int depth) {
  auto y = linear(norm(x));
  if (depth > 0) y = again(y, depth - 1);
  return norm(y * (1 + depth));
}

struct RecursionImpl : torch::nn::Module {
  RecursionImpl() : block(register_module("block", Recursive())) {
    block->again = [this](const Tensor& x, int depth) { return block(x, depth); };
  }
  Tensor forward(const Tensor& x) { return block(x, 2); }
  Recursive block;
};
SMP_MODULE(Recursion);

TEST(RunningStatistics, OfANormalisationInABlockThatCallsItselfAreThoseOfOneProcess) {
  expect_trained<Recursion>([] { return Recursion(); }, {{"block", 1}, {"block.linear", 2}});
}

}  // namespace running_statistics_test
}  // namespace smp::buffer_tests
