// Most of a model's cost in modules that cannot be placed is told, with what to do.
#include <torch/types.h>

#include <string>

#include "api/two_ranks.h"
#include "base/log.h"

namespace smp {
namespace unrouted_cost_test {

using at::Tensor;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

template <class Linear>
struct StackImpl : torch::nn::Module {
  StackImpl() {
    for (int i = 0; i < 4; ++i)
      layers.push_back(register_module("l" + std::to_string(i), Linear(64, 64)));
  }
  Tensor forward(Tensor x) {
    for (auto& layer : layers) x = layer(x).relu();
    return x;
  }
  std::vector<Linear> layers;
};
using PlainStackImpl = StackImpl<torch::nn::Linear>;
using RoutedStackImpl = StackImpl<nn::Linear>;
SMP_MODULE(PlainStack);
SMP_MODULE(RoutedStack);

/// A part that can be placed, and one of which most cannot be.
template <class Stack>
struct NetImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) { return last(stack(x)); }
  Stack stack = register_module("stack", Stack());
  nn::Linear last = register_module("last", nn::Linear(64, 64));
};
using PlainNetImpl = NetImpl<PlainStack>;
using RoutedNetImpl = NetImpl<RoutedStack>;
SMP_MODULE(PlainNet);
SMP_MODULE(RoutedNet);

template <class Net>
std::string told() {
  base::LogCapture log;
  Config config;
  config.microbatches = 4;
  config.plan_cache = "off";
  run_local(2,
            [] {
              Net net;
              DistributedModel model(net);
              auto train = step([&](const Tensor& x) { model.backward(model(x).sum()); });
              train(torch::ones({8, 64}));
            },
            config, {.seed = 1});
  return log.text();
}

TEST(UnroutedCost, IsTold) {
  EXPECT_THAT(told<PlainNet>(),
              AllOf(HasSubstr("module 'stack' (Stack) holds "),
                    HasSubstr("'stack.l0' (Linear) among them"), HasSubstr("SMP_MODULE")));
  EXPECT_THAT(told<RoutedNet>(), Not(HasSubstr("SMP_MODULE")));
}

}  // namespace unrouted_cost_test
}  // namespace smp
