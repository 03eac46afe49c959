// A parameter that is whole on every rank, each of which uses a part of it for the samples of all
// (docs/tensor_parallelism.md, Your own).
#include <gtest/gtest.h>
#include <torch/types.h>

#include "smp/smp.h"

namespace smp {
namespace used_in_part_training_test {

using at::Tensor;

/// x -> x w, column by column on the rank that has it.
struct ScaleImpl : DistributedModule {
  ScaleImpl() { weight = register_parameter("weight", torch::linspace(1, 2, 4, torch::kDouble)); }
  Tensor forward(const Tensor& x) {
    const auto columns = whole_batch_for_tp(x).chunk(tp_size(), -1)[tp_rank()];
    const auto own = used_in_part_for_tp(weight).chunk(tp_size())[tp_rank()];
    return batch_of_slices_for_tp(columns * own, -1);
  }
  Tensor weight;
};
SMP_MODULE(Scale);

struct NetImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) { return scale(x.tanh()).square().mean(); }
  Scale scale = register_module("scale", Scale());
};
SMP_MODULE(Net);

TEST(UsedInPartTraining, GradientsAreThoseOfOneProcess) {
  const auto x = torch::linspace(-1, 1, 96, torch::kDouble).reshape({24, 4});
  const auto weight = torch::linspace(1, 2, 4, torch::kDouble).requires_grad_();
  (x.tanh() * weight).square().mean().backward();
  for (const bool prescaled : {true, false}) {
    for (const int replicas : {1, 2}) {
      Config config;
      config.tensor_parallel_degree = 2;
      config.pipeline_parallel_degree = 1;
      config.prescaled_batch = prescaled;
      config.microbatches = 2;
      config.plan_cache = "off";
      config.skip_tracing = true;
      run_local(2 * replicas,
                [&] {
                  Net net;
                  DistributedModel model(net);
                  auto train = step([&](const Tensor& own) { model.backward(model(own)); });
                  const auto shares = x.chunk(prescaled ? rdp_size() : dp_size());
                  train(shares[static_cast<std::size_t>(prescaled ? rdp_rank() : dp_rank())]);
                  EXPECT_TRUE(at::allclose(net->scale->weight.grad(), weight.grad(), 1e-12, 0))
                      << "prescaled " << prescaled << ", replicas " << replicas;
                },
                config, {.seed = 1});
    }
  }
}

}  // namespace used_in_part_training_test
}  // namespace smp
