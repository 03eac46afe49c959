// A trial run shows one kind of step; the first of another runs one microbatch at a time.
#include <functional>

#include "api/state/module_state_testing.h"

namespace smp {
namespace step_kinds_test {

using namespace module_state_test;  // NOLINT(google-build-using-namespace)

/// In training it keeps what it saw last, which its parent reads.
struct MemoryImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) {
    if (is_training()) seen = x.detach();
    return x.tanh();
  }
  Tensor seen;
};
SMP_MODULE(Memory);

struct ReaderImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) {
    const auto y = last(memory(first(x)));
    return memory->is_training() ? y + memory->seen : y;
  }
  Tensor forget(const Tensor& x) {
    memory->eval();
    const auto y = last(memory(first(x)));
    memory->train();
    return y;
  }
  nn::Linear first = register_module("first", linear());
  Memory memory = register_module("memory", Memory());
  nn::Linear last = register_module("last", linear());
};
SMP_MODULE(Reader, forget);

Reader make() {
  torch::manual_seed(5);
  Reader net;
  net->to(torch::kDouble);
  return net;
}

/// Trains after something else was done with the model in `first`.
void expect_as_in_one_process(
    const std::function<void(Reader&, DistributedModel<Reader>&)>& first) {
  auto reference = make();
  torch::optim::SGD optimizer(reference->parameters(), 0.05);
  for (int s = 0; s < kSteps; ++s) {
    optimizer.zero_grad();
    for (const auto& x : batch(s).tensor_split(kMicrobatches)) {
      (reference(x).pow(2).mean() / kMicrobatches).backward();
    }
    optimizer.step();
  }
  run_local(
      1,
      [&] {
        auto net = make();
        DistributedModel model(net);
        first(net, model);
        DistributedOptimizer own(model, torch::optim::SGD(model.parameters(), 0.05));
        auto train = smp::step([&](const Tensor& x) {
          const auto loss = model(x).pow(2).mean();
          model.backward(loss);
        });
        for (int s = 0; s < kSteps; ++s) {
          own.zero_grad();
          train(batch(s));
          own.step();
        }
        const auto parameters = reference->named_parameters();
        for (const auto& parameter : net->named_parameters()) {
          EXPECT_TRUE(torch::allclose(parameter.value(), parameters[parameter.key()], 0, 1e-12))
              << parameter.key();
        }
      },
      config_of("interleaved"));
}

TEST(StepKinds, TrainingAfterAnEvaluationIsThatOfOneProcess) {
  expect_as_in_one_process([](Reader&, DistributedModel<Reader>& model) {
    model.eval();
    auto evaluate = smp::step([&](const Tensor& x) { return model(x).detach(); });
    evaluate(batch(7));
    model.train();
  });
}

TEST(StepKinds, AnotherStepFunctionIsAnother) {
  expect_as_in_one_process([](Reader& net, DistributedModel<Reader>&) {
    auto forget = smp::step([&](const Tensor& x) { return net->forget(x).detach(); });
    forget(batch(7));
  });
}

}  // namespace step_kinds_test
}  // namespace smp
