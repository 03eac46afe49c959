// samples/t5/config.cpp: the preset configurations.
#include "config.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace t5 {
namespace {

constexpr int64_t kByteVocabulary = 384;  // 3 special tokens, 256 bytes, 125 sentinels

T5Config public_shape(int64_t d_model, int64_t d_kv, int64_t d_ff, int64_t layers, int64_t heads) {
  T5Config config;
  config.d_model = d_model;
  config.d_kv = d_kv;
  config.d_ff = d_ff;
  config.num_layers = layers;
  config.num_decoder_layers = layers;
  config.num_heads = heads;
  return config;
}

T5Config byte_model(int64_t d_model, int64_t d_kv, int64_t d_ff, int64_t layers, int64_t heads) {
  T5Config config = public_shape(d_model, d_kv, d_ff, layers, heads);
  config.vocab_size = kByteVocabulary;
  config.dropout_rate = 0.0;  // a minute of training never sees a byte twice
  return config;
}

T5Config version_1_1(T5Config config) {
  config.is_gated_act = true;
  config.tie_word_embeddings = false;
  return config;
}

const std::vector<std::pair<std::string, T5Config>>& presets() {
  static const std::vector<std::pair<std::string, T5Config>> table{
      {"tiny", byte_model(32, 8, 64, 2, 4)},
      {"demo", byte_model(192, 32, 512, 4, 6)},
      {"small", public_shape(512, 64, 2048, 6, 8)},
      {"base", public_shape(768, 64, 3072, 12, 12)},
      {"large", public_shape(1024, 64, 4096, 24, 16)},
      {"3b", public_shape(1024, 128, 16384, 24, 32)},
      {"11b", public_shape(1024, 128, 65536, 24, 128)},
      {"v1_1-small", version_1_1(public_shape(512, 64, 1024, 8, 6))},
      {"v1_1-base", version_1_1(public_shape(768, 64, 2048, 12, 12))},
  };
  return table;
}

}  // namespace

T5Config T5Config::preset(std::string_view name) {
  const auto& table = presets();
  const auto found = std::find_if(table.begin(), table.end(),
                                  [&](const auto& entry) { return entry.first == name; });
  if (found != table.end()) return found->second;
  std::string message = "unknown T5 configuration '" + std::string(name) + "'; choose one of:";
  for (const auto& known : preset_names()) message += " " + known;
  throw std::invalid_argument(message);
}

std::vector<std::string> T5Config::preset_names() {
  std::vector<std::string> names;
  for (const auto& [name, config] : presets()) names.push_back(name);
  return names;
}

}  // namespace t5
