// Distributed modules whose initialisation is delayed get the slices that they would have at once.
#include <gtest/gtest.h>

#include <optional>

#include "smp/smp.h"
#include "smp/tp.h"
#include "smp/tp/distributed_decoder_layer.h"

namespace smp::tp {
namespace delayed_slices_test {

struct LayersImpl : torch::nn::Module {
  LayersImpl()
      : inputs(register_module("inputs", nn::DistributedLinear(4, 6))),
        outputs(register_module("outputs", nn::DistributedLinear(torch::nn::LinearOptions(4, 6),
                                                                 nn::LinearSplit::kOutputs))),
        table(register_module(
            "table", nn::DistributedEmbedding(torch::nn::EmbeddingOptions(7, 4).padding_idx(-2)))),
        vocabulary(register_module("vocabulary", nn::DistributedVocabulary(5, 4, 0.1))),
        norm(register_module("norm", nn::DistributedLayerNorm(torch::nn::LayerNormOptions({4})))),
        layer(register_module("layer",
                              nn::DistributedDecoderLayer(nn::DecoderLayerOptions(
                                  nn::GroupedQueryAttentionOptions(4, 2).kv_heads(1).bias(true),
                                  nn::GatedMlpOptions(4, 5), nn::RMSNormOptions(4))))) {}
  at::Tensor forward(const at::Tensor& x) { return norm(inputs(x).narrow(1, 0, 4)); }
  nn::DistributedLinear inputs, outputs;
  nn::DistributedEmbedding table;
  nn::DistributedVocabulary vocabulary;
  nn::DistributedLayerNorm norm;
  nn::DistributedDecoderLayer layer;
};
SMP_MODULE(Layers);

using Values = std::map<std::string, at::Tensor>;

Values values_of_rank(bool is_delayed, int of_rank) {
  Values values;
  Config config;
  config.tensor_parallel_degree = 2;
  run_local(2,
            [&] {
              torch::manual_seed(6);
              std::optional<delay_param_initialization> delayed;
              if (is_delayed) delayed.emplace();
              Layers net;
              DistributedModel model(net);
              model.place();
              if (rank() != of_rank) return;
              for (const auto& [name, value] : model.local_named_parameters()) {
                values[name] = value.detach().clone();
              }
            },
            config, {1});
  return values;
}

TEST(DelayedSlices, AreThoseThatAreDrawnAtOnce) {
  for (const int of_rank : {0, 1}) {
    const auto expected = values_of_rank(false, of_rank);
    const auto delayed = values_of_rank(true, of_rank);
    ASSERT_EQ(delayed.size(), expected.size());
    for (const auto& [name, value] : expected) {
      EXPECT_TRUE(at::equal(delayed.at(name), value)) << name << " on rank " << of_rank;
    }
  }
}

struct PlainImpl : torch::nn::Module {
  PlainImpl()
      : linear(register_module("linear", nn::Linear(4, 6))),
        table(register_module("table",
                              nn::Embedding(torch::nn::EmbeddingOptions(7, 4).padding_idx(-2)))),
        norm(register_module("norm", nn::LayerNorm(torch::nn::LayerNormOptions({4})))),
        layer(register_module("layer", nn::DecoderLayer(nn::DecoderLayerOptions(
                                           nn::GroupedQueryAttentionOptions(6, 3).bias(true),
                                           nn::GatedMlpOptions(6, 5), nn::RMSNormOptions(6))))),
        experts(register_module("experts", nn::MixtureOfExperts(nn::MixtureOfExpertsOptions(
                                               nn::GatedMlpOptions(4, 6), 3, 2)))) {
    const torch::NoGradGuard no_grad;
    linear->weight.mul_(2);
  }
  at::Tensor forward(const at::Tensor& x) { return norm(linear(x).narrow(1, 0, 4)); }
  nn::Linear linear;
  nn::Embedding table;
  nn::LayerNorm norm;
  nn::DecoderLayer layer;
  nn::MixtureOfExperts experts;
};
SMP_MODULE(Plain);

/// What rank `of_rank` of two has of a plain model that is spread. @param order  nothing: not
/// delayed
Values spread_on_rank(std::optional<InitOrder> order, const char* layout, int of_rank) {
  Values values;
  Config config;
  config.tensor_parallel_degree = 2;
  config.optimize = layout;
  run_local(2,
            [&] {
              torch::manual_seed(6);
              Plain net{nullptr};
              {
                std::optional<delay_param_initialization> delayed;
                if (order) delayed.emplace(*order);
                net = Plain();
              }
              set_tensor_parallelism(net);
              DistributedModel model(net);
              EXPECT_EQ(net->linear->weight.is_meta(), order.has_value());
              model.place();
              EXPECT_TRUE(model.is_distributed_parameter(net->linear->weight));
              if (rank() != of_rank) return;
              for (const auto& [name, value] : model.local_named_parameters()) {
                values[name] = value.detach().clone();
              }
            },
            config, {1});
  return values;
}

TEST(DelayedSlices, OfPlainModulesAreThoseThatAreDrawnAtOnce) {
  for (const auto* layout : {"speed", "memory"}) {
    for (const int of_rank : {0, 1}) {
      const auto expected = spread_on_rank(std::nullopt, layout, of_rank);
      const auto delayed = spread_on_rank(InitOrder::kAsWritten, layout, of_rank);
      ASSERT_EQ(delayed.size(), expected.size());
      for (const auto& [name, value] : expected) {
        EXPECT_TRUE(at::equal(delayed.at(name), value))
            << name << " on rank " << of_rank << ", " << layout;
      }
    }
  }
}

/// Each parameter has a stream of its own, of which both ranks draw the same.
TEST(DelayedSlices, OfPlainModulesAreOfOneWholeByPath) {
  Values whole;
  run_local(1,
            [&] {
              torch::manual_seed(6);
              Plain net{nullptr};
              {
                const delay_param_initialization delayed(InitOrder::kByPath);
                net = Plain();
              }
              DistributedModel model(net);
              model.place();
              for (const auto& [name, value] : model.local_named_parameters()) {
                whole[name] = value.detach().clone();
              }
            },
            {}, {1});
  for (const int of_rank : {0, 1}) {
    const auto own = spread_on_rank(InitOrder::kByPath, "speed", of_rank);
    for (const auto* name : {"table.weight", "linear.weight"}) {
      EXPECT_TRUE(at::equal(own.at(name), whole.at(name).chunk(2, 1)[of_rank])) << name;
    }
    const std::string gate = "layer.mlp.gate_proj.weight";
    EXPECT_TRUE(at::equal(own.at(gate).narrow(0, 0, 2), whole.at(gate).narrow(0, 3 * of_rank, 2)));
  }
}

}  // namespace delayed_slices_test
}  // namespace smp::tp
