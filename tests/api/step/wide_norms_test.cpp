// Gradients of a LayerNorm whose activations have 16 bits and whose weights float32, as autocast
// makes them: one for each of many rows, added up.
#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <gmock/gmock.h>
#include <torch/types.h>

#include <vector>

#include "api/two_ranks.h"
#include "smp/recompute/activation_checkpointing.h"

namespace smp {
namespace wide_norms_test {

using at::Tensor;

constexpr std::int64_t kRows = 1000, kWidth = 4;  // of a microbatch

struct NormedImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) { return norm(linear(x)); }
  nn::Linear linear = register_module("linear", nn::Linear(kWidth, kWidth));
  nn::LayerNorm norm = register_module("norm", nn::LayerNorm(nn::LayerNormOptions({kWidth})));
};
SMP_MODULE(Normed);

struct NetImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) { return normed(x).sum(at::kFloat); }
  Normed normed = register_module("normed", Normed());
};
SMP_MODULE(Net);

Net make_net() {
  torch::manual_seed(4);
  return {};
}

Tensor batch() {
  torch::manual_seed(5);
  return torch::randn({2 * kRows, kWidth});
}

/// One accumulator of bfloat16 for each thread, which stops at 256 ones.
TEST(WideNorms, LibTorchLosesRows) {
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  auto net = make_net();
  at::autocast::set_autocast_enabled(at::kCPU, true);
  const auto loss = net->forward(batch());
  at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(at::kCPU, false);
  loss.backward();
  EXPECT_EQ(net->normed->norm->bias.grad()[0].item<float>(), 256);
  at::set_num_threads(threads);
}

/// What one process has whose backward runs in float32 from the rounded activations on.
std::vector<Tensor> expected_gradients() {
  auto net = make_net();
  auto& normed = *net->normed;
  for (const auto& x : batch().chunk(2)) {
    const auto narrow = at::linear(x.to(at::kBFloat16), normed.linear->weight.to(at::kBFloat16),
                                   normed.linear->bias.to(at::kBFloat16));
    normed.norm(narrow.to(at::kFloat)).sum().backward();
  }
  std::vector<Tensor> gradients;
  for (const auto& parameter : net->parameters()) gradients.push_back(parameter.grad());
  return gradients;
}

TEST(WideNorms, AddUpInFloat32) {
  const auto expected = expected_gradients();
  for (const int stages : {1, 2}) {
    for (const bool again : {false, true}) {
      SCOPED_TRACE(testing::Message() << stages << " stages, computed again " << again);
      Config config;
      config.precision = "amp";
      config.microbatches = 2;
      config.loss = "sum";
      config.plan_cache = "off";
      config.skip_tracing = true;
      run_local(stages,
                [&] {
                  auto net = make_net();
                  if (again) set_activation_checkpointing(*net->normed);
                  DistributedModel model(net);
                  model.set_partition("", 0);
                  model.set_partition("normed", stages - 1);
                  auto train = smp::step([&](const Tensor& x) { model.backward(model(x)); });
                  train(batch());
                  const auto parameters = net->parameters();
                  if (!model.owns(parameters[0])) return;
                  EXPECT_EQ(parameters[3].grad()[0].item<float>(), 2 * kRows);
                  EXPECT_TRUE(at::allclose(parameters[2].grad(), expected[2], 0, 1e-3));
                },
                config, {.seed = 1});
    }
  }
}

/// Of few rows, whose sums LibTorch does not lose: all gradients are those of one process.
TEST(WideNorms, ChangeNoOtherGradient) {
  const auto few = batch().narrow(0, 0, 16);
  auto plain = make_net();
  at::autocast::set_autocast_enabled(at::kCPU, true);
  const auto loss = plain->normed->forward(few).square().sum();
  at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(at::kCPU, false);
  loss.backward();
  Config config;
  config.precision = "amp";
  config.microbatches = 1;
  config.plan_cache = "off";
  config.skip_tracing = true;
  run_local(
      1,
      [&] {
        auto net = make_net();
        DistributedModel model(net);
        auto train =
            smp::step([&](const Tensor& x) { model.backward(net->normed(x).square().sum()); });
        train(few);
        for (const auto& item : plain->named_parameters()) {
          const auto own = net->named_parameters()[item.key()].grad();
          const auto& due = item.value().grad();
          EXPECT_LE((own - due).abs().max().item<double>(), 0.01 * due.abs().max().item<double>())
              << item.key() << own << due;
        }
      },
      config, {.seed = 1});
}

}  // namespace wide_norms_test
}  // namespace smp
