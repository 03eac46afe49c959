// samples/llama/presets.cpp: see the header.
#include "presets.h"

#include <smp/hf.h>

#include <functional>
#include <map>
#include <stdexcept>

#include "text.h"

namespace llama {
namespace {

/// For a minute or two.
Preset small(const std::string& size, std::int64_t context, std::int64_t steps) {
  Preset preset;
  preset.config = sample_folder() + "/sizes/" + size + ".json";
  preset.layout.pp = 0;
  preset.steps = steps;
  auto& recipe = preset.recipe;
  recipe.context = context;
  recipe.schedule = {.warmup_steps = 20, .warmup_start = 0.05, .decay_steps = steps - 20};
  return preset;
}

/// Llama 2's and HLAT's: 4 M tokens a step, 2,000 steps of warm-up, a decay that ends after 480,000
/// wherever the run does. A replica has eight stages.
Preset large(const std::string& size, std::int64_t context) {
  Preset preset;
  preset.config = sample_folder() + "/sizes/" + size + ".json";
  preset.layout = {.pp = 8, .tp = 1};
  preset.steps = 480000;
  auto& recipe = preset.recipe;
  recipe.context = context;
  recipe.rows = 4194304 / context;
  recipe.micro_rows = 1;
  recipe.learning_rate = 3e-4;
  recipe.schedule = {.warmup_steps = 2000, .decay_steps = 478000};
  recipe.dtype = torch::kBFloat16;
  return preset;
}

const std::map<std::string, std::function<Preset()>>& presets() {
  static const std::map<std::string, std::function<Preset()>> table{
      {"tiny", [] { return small("tiny", 64, 60); }},
      {"demo",
       [] {
         auto preset = small("demo", 256, 240);
         preset.recipe.dtype = torch::kBFloat16;
         return preset;
       }},
      {"7b", [] { return large("7b", 4096); }},
      {"8b", [] { return large("8b", 8192); }},
  };
  return table;
}

/// Both name things as Hugging Face does; the model of the sample lacks optional sizes.
models::LlamaConfig model_of(const smp::hf::LlamaConfig& published) {
  models::LlamaConfig model;
  model.vocab_size = published.vocab_size;
  model.hidden_size = published.hidden_size;
  model.intermediate_size = published.intermediate_size;
  model.num_hidden_layers = published.num_hidden_layers;
  model.num_attention_heads = published.num_attention_heads;
  model.num_key_value_heads = published.kv_heads();
  model.head_dim = published.head_size();
  model.rms_norm_eps = published.rms_norm_eps;
  model.rope = published.rope;
  model.tie_word_embeddings = published.tie_word_embeddings;
  model.sliding_window = published.sliding_window;
  model.qk_norm = published.qk_norm();
  model.attention_bias = published.layer().attention().bias();
  model.norm_unit_offset = published.is_gemma();
  model.scale_embeddings = published.is_gemma();
  model.activation = published.layer().mlp().activation();
  model.initializer_range = published.initializer_range;
  return model;
}

}  // namespace

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (const auto& [name, make] : presets()) names.push_back(name);
  return names;
}

Preset preset(const std::string& name) {
  const auto found = presets().find(name);
  if (found != presets().end()) return found->second();
  std::string message = "there is no size '" + name + "'; choose one of:";
  for (const auto& known : preset_names()) message += " " + known;
  throw std::invalid_argument(message);
}

void read_config(const std::string& path, Recipe& recipe) {
  const auto config = smp::hf::Config::read(path);
  recipe.model = model_of(config.llama());
  recipe.config_json = config.json();
}

}  // namespace llama
