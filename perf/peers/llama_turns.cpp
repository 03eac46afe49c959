// perf/peers/llama_turns.cpp: a Llama in stages, or with its layers spread over all ranks, which
// are given one batch; perf/peers/llama.py is the same model.
#include "models/llama.h"

#include <string>

#include "peers/turns.h"
#include "smp/tp.h"

namespace smp::perf::peers {
namespace {

models::LlamaConfig llama_config(const Options& options) {
  models::LlamaConfig config;
  config.vocab_size = options.tiny ? 64 : 256;
  config.hidden_size = options.tiny ? 32 : 256;
  config.intermediate_size = options.tiny ? 48 : 704;
  config.num_hidden_layers = options.tiny ? 2 : 6;
  config.num_attention_heads = options.tiny ? 4 : 8;
  config.num_key_value_heads = config.num_attention_heads / 2;
  config.head_dim = config.hidden_size / config.num_attention_heads;
  config.rms_norm_eps = 1e-6;
  return config;
}

}  // namespace

Turn llama(const Options& options) {
  const auto config = llama_config(options);
  const auto batch_of = [options, config](int64_t step) {
    const auto tokens = sequences(step, options.rows, options.length + 1, config.vocab_size);
    return Batch(tokens, tokens);
  };
  const auto equal_parts = [config](DistributedModelBase& model) {
    model.set_partition("", 0);
    for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
      model.set_partition("model.layers." + std::to_string(i),
                          static_cast<int>(i * pp_size() / config.num_hidden_layers));
    }
    model.set_partition("model.norm", pp_size() - 1);
    model.set_partition("lm_head", pp_size() - 1);
  };
  const auto loss_of = [](auto& net, const Tensor& tokens, const Tensor&) { return net(tokens); };
  models::Llama net(config);
  if (options.variant.starts_with("sliced")) set_tensor_parallelism(net);
  return training(options, net, loss_of, batch_of, equal_parts);
}

}  // namespace smp::perf::peers
