// The formula against the operators that a Llama runs.
#include "smp/recipe/model_flops.h"

#include <ATen/record_function.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string_view>

#include "models/llama.h"

namespace smp {
namespace {

double counted = 0;

/// Two operations for each multiplication of the operators that multiply matrices.
std::unique_ptr<at::ObserverContext> count(const at::RecordFunction& call) {
  const std::string_view name = call.name();
  const auto inputs = call.inputs();
  const auto tensor = [&](std::size_t i) { return inputs[i].toTensor(); };
  if (name == "aten::mm") {
    counted += 2.0 * tensor(0).size(0) * tensor(0).size(1) * tensor(1).size(1);
  } else if (name == "aten::addmm") {
    counted += 2.0 * tensor(1).size(0) * tensor(1).size(1) * tensor(2).size(1);
  } else if (name == "aten::bmm") {
    counted += 2.0 * tensor(0).numel() * tensor(1).size(2);
  } else if (name == "aten::_scaled_dot_product_flash_attention_for_cpu") {
    // Both products, [H, T, D] x [H, D, T] and [H, T, T] x [H, T, D].
    counted += 4.0 * tensor(0).numel() * tensor(1).size(2);
  }
  return nullptr;
}

double counted_forward(const models::LlamaConfig& config, std::int64_t length) {
  models::Llama net(config);
  const torch::NoGradGuard no_grad;
  const auto tokens = torch::zeros({1, length}, torch::kLong);
  counted = 0;
  const auto handle = at::addThreadLocalCallback(
      at::RecordFunctionCallback(count).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
  net->scores(tokens);
  at::removeCallback(handle);
  return counted;
}

DecoderShape shape_of(const models::LlamaConfig& config) {
  return {.vocab_size = config.vocab_size,
          .hidden_size = config.hidden_size,
          .intermediate_size = config.intermediate_size,
          .layers = config.num_hidden_layers,
          .heads = config.num_attention_heads,
          .kv_heads = config.num_key_value_heads,
          .head_dim = config.head_dim};
}

TEST(ModelFlops, AreThoseOfTheOperatorsThatRun) {
  models::LlamaConfig config;
  config.num_hidden_layers = 3;
  EXPECT_EQ(counted_forward(config, 16), forward_flops(shape_of(config), 16));
  config.num_key_value_heads = 4;
  config.head_dim = 24;  // is not width / heads
  config.vocab_size = 101;
  config.intermediate_size = 40;
  EXPECT_EQ(counted_forward(config, 9), forward_flops(shape_of(config), 9));
  EXPECT_EQ(training_flops(shape_of(config), 9), 3 * forward_flops(shape_of(config), 9));
}

/// Llama 2 7B: 6.607 G parameters in products, and 4 L T^2 W more for attention.
TEST(ModelFlops, OfLlama7B) {
  const DecoderShape llama{32000, 4096, 11008, 32, 32, 32, 128};
  EXPECT_EQ(matrix_parameters(llama), 6607077376.0);
  EXPECT_EQ(training_flops(llama, 4096),
            6 * 4096.0 * 6607077376.0 + 12 * 32.0 * 4096.0 * 4096.0 * 4096.0);
}

}  // namespace
}  // namespace smp
