// Steps with gradient penalties through layers of which some ranks have nothing: no heads, no
// experts, no tokens of the vocabulary. Gradients equal those of one process.
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/torch.h>

#include <map>
#include <string>
#include <vector>

#include "smp/smp.h"
#include "smp/tp.h"
#include "tp/layer_comparison.h"

namespace smp::tp {
namespace penalties_of_empty_slices_test {

constexpr std::int64_t kWidth = 8, kTokens = 5, kRows = 4, kLength = 3;
constexpr int kMicrobatches = 2;

nn::GroupedQueryAttentionOptions grouped(std::int64_t heads, std::int64_t keys) {
  return nn::GroupedQueryAttentionOptions(kWidth, heads)
      .kv_heads(keys)
      .rotary(nn::RotaryEmbeddingOptions(2).rope_theta(50));
}

nn::DecoderLayerOptions block() {
  return {grouped(6, 2).qk_norm_eps(1e-2), nn::GatedMlpOptions(kWidth, 3),
          nn::RMSNormOptions(kWidth).eps(1e-2)};
}

nn::MixtureOfExpertsOptions mixture() { return {nn::GatedMlpOptions(kWidth, 2), 3, 1}; }

struct PlainTableImpl : torch::nn::EmbeddingImpl {
  PlainTableImpl(std::int64_t tokens, std::int64_t width)
      : torch::nn::EmbeddingImpl(tokens, width) {}
  at::Tensor losses(const at::Tensor& hidden, const at::Tensor&) {
    const auto scores = at::linear(hidden, weight);
    return scores.logsumexp(-1) - scores.select(-1, 0);
  }
};
TORCH_MODULE(PlainTable);

struct Plain {
  using Block = nn::DecoderLayer;
  using Attention = nn::GroupedQueryAttention;
  using Mixture = nn::MixtureOfExperts;
  using Table = PlainTable;
};

struct Sliced {
  using Block = nn::DistributedDecoderLayer;
  using Attention = nn::DistributedGroupedQueryAttention;
  using Mixture = nn::DistributedMixtureOfExperts;
  using Table = nn::DistributedVocabulary;
};

/// [B, S, W] -> a number.
template <class Layers>
struct NetOf : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) {
    auto hidden = first(x);
    hidden = hidden + second(hidden);
    const auto [mixed, balance] = experts(hidden);
    const auto labels = at::zeros({x.size(0), x.size(1)}, at::kLong);
    return table->losses(hidden + mixed, labels).mean() + 0.1 * balance;
  }

  typename Layers::Block first = register_module("first", typename Layers::Block(block()));
  typename Layers::Attention second =
      register_module("second", typename Layers::Attention(grouped(3, 1)));
  typename Layers::Mixture experts =
      register_module("experts", typename Layers::Mixture(mixture()));
  typename Layers::Table table = register_module("table", typename Layers::Table(kTokens, kWidth));
};

struct SlicedNetImpl : NetOf<Sliced> {};
SMP_MODULE(SlicedNet);

template <class Net, class Differentiate>
at::Tensor penalised(Net& net, const at::Tensor& x, const Differentiate& differentiate) {
  const auto input = x.detach().clone().requires_grad_();
  const auto loss = net(input);
  return loss + (differentiate(loss, input).norm(2, -1) - 1).square().mean();
}

using Values = std::map<std::string, at::Tensor>;

Values in_one_process(int batches) {
  torch::manual_seed(7);
  NetOf<Plain> net;
  net.to(torch::kDouble);
  const auto forward = [&](const at::Tensor& x) { return net.forward(x); };
  const auto grad = [](const at::Tensor& y, const at::Tensor& x) {
    return torch::autograd::grad({y}, {x}, {}, true, true)[0];
  };
  for (const auto& batch : numbers(batches, {kRows, kLength, kWidth})) {
    for (const auto& x : batch.chunk(kMicrobatches)) {
      (penalised(forward, x, grad) / (kMicrobatches * batches)).backward();
    }
  }
  Values gradients;
  for (const auto& item : net.named_parameters()) gradients[item.key()] = item.value().grad();
  for (const auto* projection : {"gate_proj", "up_proj", "down_proj"}) {
    std::vector<at::Tensor> all;
    for (int i = 0; i < 3; ++i) {
      all.push_back(
          gradients.at("experts.experts." + std::to_string(i) + "." + projection + ".weight"));
    }
    gradients[std::string("experts.experts.") + projection] = at::stack(all);
  }
  return gradients;
}

struct Mix {
  int tp, pp;
  const char* optimize;
  bool prescaled;
};

void train_and_compare(const Values& expected) {
  torch::manual_seed(7);
  SlicedNet net;
  net->to(torch::kDouble);
  DistributedModel model(net);
  model.set_partition("", 0);
  for (const auto* last : {"second", "table"}) model.set_partition(last, pp_size() - 1);
  auto train = step([&](const at::Tensor& x) {
    const auto grad = [](const at::Tensor& y, const at::Tensor& input) {
      return smp::grad({y}, {input}, {}, true, true)[0];
    };
    model.backward(penalised(model, x, grad));
  });
  const auto shard = data_shard();
  train(numbers(shard.count, {kRows, kLength, kWidth})[static_cast<std::size_t>(shard.index)]);
  const SlicedParameters slices(*net);
  for (const auto& [name, parameter] : model.local_named_parameters()) {
    const auto slice = slices.find(parameter);
    const auto& whole = expected.at(name);
    const auto own =
        slice ? part_of(whole, slice->dim, parameter.size(slice->dim), tp_rank()) : whole;
    expect_near(parameter.grad(), own, 1e-12, name);
  }
}

TEST(PenaltiesOfEmptySlices, EqualThoseOfOneProcess) {
  at::globalContext().setSDPUseFlash(false);
  for (const auto& mix :
       {Mix{4, 1, "speed", false}, Mix{4, 2, "speed", true}, Mix{4, 1, "memory", true},
        Mix{4, 2, "memory", false}, Mix{4, 1, "sequence", true}, Mix{2, 2, "speed", false}}) {
    SCOPED_TRACE(testing::Message() << "tp " << mix.tp << ", pp " << mix.pp << ", " << mix.optimize
                                    << (mix.prescaled ? ", prescaled" : ""));
    const auto expected = in_one_process(mix.prescaled ? 1 : mix.tp);
    Config config;
    config.tensor_parallel_degree = mix.tp;
    config.pipeline_parallel_degree = mix.pp;
    config.optimize = mix.optimize;
    config.prescaled_batch = mix.prescaled;
    config.microbatches = kMicrobatches;
    config.plan_cache = "off";
    run_local(mix.tp * mix.pp, [&] { train_and_compare(expected); }, config, {3});
  }
  at::globalContext().setSDPUseFlash(true);
}

}  // namespace penalties_of_empty_slices_test
}  // namespace smp::tp
