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

}  // namespace delayed_slices_test
}  // namespace smp::tp
