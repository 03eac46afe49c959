// hf/family_names.cpp: tables.
#include "hf/family_names.h"

#include <algorithm>
#include <array>
#include <vector>

#include "base/check.h"
#include "checkpoint/names.h"
#include "hf/name_pattern.h"

namespace smp::hf {
namespace {

struct FamilyNames {
  std::string_view prefix;                 ///< of all but the head
  std::vector<std::string_view> below_it;  ///< first parts of names that have it
  std::vector<Tie> ties;
  std::vector<std::string_view> buffers;  ///< patterns
  std::vector<std::string_view> others;   ///< patterns of parameters of further heads
};

const FamilyNames& names_of(Family family) {
  static const std::array<FamilyNames, 5> all{{
      {"model.",
       {"embed_tokens", "layers", "norm", "rotary_emb"},
       {{"model.embed_tokens.weight", "lm_head.weight", true}},
       {"model.layers.{}.self_attn.rotary_emb.*", "model.rotary_emb.*"},
       {}},
      {"transformer.",
       {"wte", "wpe", "h", "ln_f"},
       {{"transformer.wte.weight", "lm_head.weight", true}},
       {"transformer.h.{}.attn.bias", "transformer.h.{}.attn.masked_bias"},
       {}},
      {"bert.",
       {"embeddings", "encoder", "pooler"},
       {{"bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight", true},
        {"cls.predictions.bias", "cls.predictions.decoder.bias", false}},
       {"bert.embeddings.position_ids", "bert.embeddings.token_type_ids"},
       {"bert.pooler.*", "cls.seq_relationship.*"}},
      {"roberta.",
       {"embeddings", "encoder", "pooler"},
       {{"roberta.embeddings.word_embeddings.weight", "lm_head.decoder.weight", true},
        {"lm_head.bias", "lm_head.decoder.bias", false}},
       {"roberta.embeddings.position_ids", "roberta.embeddings.token_type_ids"},
       {"roberta.pooler.*"}},
      {"",
       {},
       {{"shared.weight", "lm_head.weight", true},
        {"shared.weight", "encoder.embed_tokens.weight", false},
        {"shared.weight", "decoder.embed_tokens.weight", false}},
       {},
       // A bias of relative positions that the first files have, and nobody reads.
       {"decoder.block.{}.layer.1.EncDecAttention.relative_attention_bias.weight"}},
  }};
  return all.at(static_cast<std::size_t>(family));
}

/// "LayerNorm.gamma" and "LayerNorm.beta" of the first BERTs.
std::string with_new_norms(std::string name) {
  const auto replace = [&](std::string_view old, std::string_view now) {
    if (name.ends_with(old)) name.replace(name.size() - old.size(), old.size(), now);
  };
  replace("LayerNorm.gamma", "LayerNorm.weight");
  replace("LayerNorm.beta", "LayerNorm.bias");
  return name;
}

bool fits_one(const std::vector<std::string_view>& patterns, const std::string& name) {
  return std::any_of(patterns.begin(), patterns.end(),
                     [&](std::string_view pattern) { return match(pattern, name).has_value(); });
}

}  // namespace

std::span<const Tie> ties_of(Family family) { return names_of(family).ties; }

std::string canonical(Family family, const std::string& name) {
  constexpr const char* kWrapper = "module.";
  auto left = checkpoints::without_part(name, "_orig_mod");
  while (left.starts_with(kWrapper)) left = checkpoints::without_prefix(left, kWrapper);
  const auto& names = names_of(family);
  if (family == Family::kBert || family == Family::kRoberta) left = with_new_norms(std::move(left));
  const auto first = left.substr(0, left.find('.'));
  const bool below =
      std::find(names.below_it.begin(), names.below_it.end(), first) != names.below_it.end();
  return below ? base::concat(names.prefix, left) : left;
}

bool is_buffer(Family family, const std::string& canonical_name) {
  return fits_one(names_of(family).buffers, canonical_name);
}

bool may_be_left_out(Family family, const std::string& canonical_name) {
  return is_buffer(family, canonical_name) || fits_one(names_of(family).others, canonical_name);
}

}  // namespace smp::hf
