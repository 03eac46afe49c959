#include "smp/nn/decoder_layer.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "smp/error.h"

namespace smp::nn {
namespace {

DecoderLayerOptions layer_options() {
  return {GroupedQueryAttentionOptions(8, 2), GatedMlpOptions(8, 12), RMSNormOptions(8)};
}

TEST(DecoderLayer, IsNormAttentionNormMlp) {
  torch::manual_seed(1);
  DecoderLayer layer(layer_options());
  const auto x = torch::randn({2, 3, 8});
  const auto positions = torch::tensor({4, 5, 9});
  const auto attended =
      x + layer->self_attn->forward(layer->input_layernorm(x), positions, torch::Tensor());
  const auto normed = layer->post_attention_layernorm(attended);
  const auto gate = torch::silu(torch::linear(normed, layer->mlp->gate_proj->weight));
  const auto up = torch::linear(normed, layer->mlp->up_proj->weight);
  const auto expected = attended + torch::linear(gate * up, layer->mlp->down_proj->weight);
  EXPECT_TRUE(torch::allclose(layer->forward(x, positions), expected, 1e-5, 1e-6));
}

TEST(DecoderLayer, GatesByEachActivation) {
  torch::manual_seed(2);
  const auto x = torch::randn({4, 8});
  for (const auto activation : {GateActivation::kGelu, GateActivation::kGeluTanh}) {
    GatedMlp mlp(GatedMlpOptions(8, 12).activation(activation).bias(true));
    const auto gate =
        torch::gelu(mlp->gate_proj(x), activation == GateActivation::kGelu ? "none" : "tanh");
    EXPECT_TRUE(torch::equal(mlp(x), mlp->down_proj(gate * mlp->up_proj(x))));
  }
}

TEST(DecoderLayer, RefusesWidthsThatDiffer) {
  EXPECT_THROW(DecoderLayer(layer_options().norm(RMSNormOptions(9))), UsageError);
  EXPECT_THROW(DecoderLayer(layer_options().mlp(GatedMlpOptions(4, 12))), UsageError);
  EXPECT_THROW(GatedMlp(GatedMlpOptions(0, 12)), UsageError);
}

}  // namespace
}  // namespace smp::nn
