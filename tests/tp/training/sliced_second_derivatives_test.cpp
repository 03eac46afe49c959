// Gradient penalties through distributed modules equal those of plain LibTorch on the global batch.
#include <torch/csrc/autograd/autograd.h>

#include "smp/grad.h"
#include "tp/training/sliced_training.h"

namespace smp::tp {
namespace sliced_second_derivatives_test {

/// [B, 6] -> [B, 4]; `first` runs twice, `norm` exchanges sums of rows.
template <class Layers, class Norm>
struct CriticImpl : torch::nn::Module {
  CriticImpl()
      : first(register_module("first", typename Layers::Linear(6, 6))),
        norm(register_module("norm", Norm(torch::nn::LayerNormOptions({6})))),
        second(register_module("second", typename Layers::Linear(6, 4))) {
    to(at::kDouble);
  }
  at::Tensor forward(const at::Tensor& x) {
    return second(torch::tanh(norm(first(torch::tanh(first(x)) + x))));
  }
  typename Layers::Linear first;
  Norm norm;
  typename Layers::Linear second;
};
/// LibTorch's layer_norm has wrong third derivatives (2.13).
struct WrittenNormImpl : torch::nn::Module {
  explicit WrittenNormImpl(const torch::nn::LayerNormOptions& options)
      : weight(register_parameter("weight", at::ones(options.normalized_shape()))),
        bias(register_parameter("bias", at::zeros(options.normalized_shape()))) {}
  at::Tensor forward(const at::Tensor& x) {
    const auto centered = x - x.mean(-1, /*keepdim=*/true);
    const auto variance = centered.square().mean(-1, /*keepdim=*/true);
    return centered / at::sqrt(variance + 1e-5) * weight + bias;
  }
  at::Tensor weight, bias;
};
TORCH_MODULE(WrittenNorm);

using SlicedCriticImpl = CriticImpl<SlicedLayers, nn::DistributedLayerNorm>;
SMP_MODULE(SlicedCritic);

at::Tensor rows_of(int replica) {
  return at::sin(at::arange(4 * 6, at::kDouble) * 0.37 + replica).view({4, 6});
}

/// `differentiate` is LibTorch's grad(), or ours, with create_graph. The penalty is of a first
/// derivative, or of a second one.
template <class Net, class Differentiate>
at::Tensor penalised(Net& net, const at::Tensor& x, int derivatives,
                     const Differentiate& differentiate) {
  const auto input = x.detach().clone().requires_grad_();
  const auto y = net(input);
  auto gradient = differentiate(y.square().sum(), input);
  if (derivatives == 2) gradient = differentiate(gradient.pow(3).sum(), input);
  return y.sin().mean() + (gradient.norm(2, 1) - 1).square().mean();
}

std::map<std::string, at::Tensor> in_one_process(int replicas, int derivatives) {
  torch::manual_seed(5);
  CriticImpl<PlainLayers, WrittenNorm> net;
  for (int replica = 0; replica < replicas; ++replica) {
    for (const auto& x : rows_of(replica).chunk(2)) {
      const auto forward = [&](const at::Tensor& in) { return net.forward(in); };
      const auto grad = [](const at::Tensor& y, const at::Tensor& input) {
        return torch::autograd::grad({y}, {input}, {}, true, true)[0];
      };
      const auto loss = penalised(forward, x, derivatives, grad);
      (loss / (2 * replicas)).backward();
    }
  }
  std::map<std::string, at::Tensor> gradients;
  for (const auto& item : net.named_parameters()) gradients[item.key()] = item.value().grad();
  return gradients;
}

struct Mix {
  int tp, pp;
  bool prescaled = false;
  int derivatives = 1;
};

TEST(SlicedSecondDerivatives, EqualThoseOfOneProcessOnTheGlobalBatch) {
  for (const auto mix :
       {Mix{2, 1}, Mix{2, 1, true}, Mix{2, 2}, Mix{2, 1, false, 2}, Mix{2, 2, true, 2}}) {
    SCOPED_TRACE(testing::Message()
                 << "tp " << mix.tp << ", pp " << mix.pp << (mix.prescaled ? ", prescaled" : "")
                 << ", derivative " << mix.derivatives);
    const auto expected = in_one_process(mix.prescaled ? 1 : mix.tp, mix.derivatives);
    Config config;
    config.tensor_parallel_degree = mix.tp;
    config.pipeline_parallel_degree = mix.pp;
    config.prescaled_batch = mix.prescaled;
    config.microbatches = 2;
    run_local(mix.tp * mix.pp,
              [&] {
                torch::manual_seed(5);
                SlicedCritic net;
                DistributedModel model(net);
                model.set_partition("", 0);
                model.set_partition("second", pp_size() - 1);
                auto train = step([&](const at::Tensor& x) {
                  const auto grad = [](const at::Tensor& y, const at::Tensor& input) {
                    return smp::grad({y}, {input}, {}, true, true)[0];
                  };
                  model.backward(penalised(model, x, mix.derivatives, grad));
                });
                train(rows_of(data_shard().index));
                for (const auto& [name, parameter] : model.local_named_parameters()) {
                  const auto& whole = expected.at(name);
                  const auto& got = parameter.grad();
                  ASSERT_TRUE(got.defined()) << name;
                  // weights [out, in] are sliced along `in`, those of the norm along their own
                  const bool sliced = got.sizes() != whole.sizes();
                  const auto own =
                      sliced ? whole.chunk(tp_size(), whole.dim() - 1)[tp_rank()] : whole;
                  ASSERT_EQ(got.sizes(), own.sizes()) << name;
                  EXPECT_TRUE(at::allclose(got, own, 1e-11, 1e-13)) << name << got << own;
                }
              },
              config, {3});
  }
}

}  // namespace sliced_second_derivatives_test
}  // namespace smp::tp
