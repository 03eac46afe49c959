// hf/name_map.cpp: rules of the families, and how they are applied.
#include "hf/name_map.h"

#include <array>
#include <utility>

#include "base/check.h"
#include "hf/family_names.h"
#include "hf/name_pattern.h"

namespace smp::hf {
namespace {

using Rule = NameMap::Rule;

void require_fitting(const Rule& rule) {
  SMP_REQUIRE(!rule.ours.empty(), "hf::NameMap: the rule for \"", rule.theirs,
              "\" has no name of the model");
  for (const auto& own : rule.ours) {
    SMP_REQUIRE(gaps(own) == gaps(rule.theirs), "hf::NameMap: the rule for \"", rule.theirs,
                "\" has ", gaps(rule.theirs), " of {} and *, and \"", own, "\" ", gaps(own));
  }
}

/// A module of a published layer, and the modules of ours that share it.
struct Moved {
  const char* theirs;
  std::vector<std::string> ours;
  bool turned = false;
};

const std::vector<Moved>& moved_in_gpt2() {
  static const std::vector<Moved> all{
      {"ln_1", {"attention.pre_norm"}},
      {"attn.c_attn", {"attention.query", "attention.key", "attention.value"}, true},
      {"attn.c_proj", {"attention.dense"}, true},
      {"ln_2", {"output.pre_norm"}},
      {"mlp.c_fc", {"output.first"}, true},
      {"mlp.c_proj", {"output.second"}, true}};
  return all;
}

const std::vector<Moved>& moved_in_bert() {
  static const std::vector<Moved> all{{"attention.self.query", {"attention.query"}},
                                      {"attention.self.key", {"attention.key"}},
                                      {"attention.self.value", {"attention.value"}},
                                      {"attention.output.dense", {"attention.dense"}},
                                      {"attention.output.LayerNorm", {"attention.post_norm"}},
                                      {"intermediate.dense", {"output.first"}},
                                      {"output.dense", {"output.second"}},
                                      {"output.LayerNorm", {"output.post_norm"}}};
  return all;
}

void add_moved(std::vector<Rule>& rules, const std::string& theirs, const std::string& ours,
               const std::vector<Moved>& all) {
  for (const auto& [module, own_modules, turned] : all) {
    for (const char* kind : {".weight", ".bias"}) {
      Rule rule{base::concat(theirs, ".", module, kind), {}, turned && kind[1] == 'w'};
      for (const auto& own : own_modules) rule.ours.push_back(base::concat(ours, ".", own, kind));
      rules.push_back(std::move(rule));
    }
  }
}

/// Returns the part of a published tensor that a rule makes `own_name`.
std::optional<Part> by_rule(const Rule& rule, const std::string& own_name) {
  for (std::size_t i = 0; i < rule.ours.size(); ++i) {
    if (const auto gap = match(rule.ours[i], own_name)) {
      return Part{filled(rule.theirs, *gap), i, rule.ours.size(), rule.turned};
    }
  }
  return std::nullopt;
}

}  // namespace

NameMap::NameMap(Family family) : family_(family) {
  if (family != Family::kGpt2) return;
  for (const char* module : {"attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"}) {
    const auto name = base::concat("transformer.h.{}.", module, ".weight");
    rules_.push_back({name, {name}, true});
  }
}

NameMap NameMap::distributed(Family family, const std::string& layers, std::vector<Rule> others) {
  NameMap map(family);
  map.rules_.clear();
  switch (family) {
    case Family::kGpt2:
      add_moved(map.rules_, "transformer.h.{}", layers, moved_in_gpt2());
      break;
    case Family::kBert:
      add_moved(map.rules_, "bert.encoder.layer.{}", layers, moved_in_bert());
      break;
    case Family::kRoberta:
      add_moved(map.rules_, "roberta.encoder.layer.{}", layers, moved_in_bert());
      break;
    default:
      throw UnsupportedError(
          "hf::NameMap::distributed: nn::DistributedTransformerLayer has the blocks of GPT-2, BERT "
          "and RoBERTa, and not of the family that was asked for");
  }
  for (const auto& rule : map.rules_) require_fitting(rule);
  map.add(others);
  return map;
}

void NameMap::add(const std::vector<Rule>& rules) {
  for (const auto& rule : rules) require_fitting(rule);
  rules_.insert(rules_.begin(), rules.begin(), rules.end());
}

Part published_part(const NameMap& names, const std::string& own_name) {
  const auto plain = canonical(names.family(), own_name);
  for (const auto* name : {&own_name, &plain}) {
    for (const auto& rule : names.rules()) {
      if (auto part = by_rule(rule, *name)) return *part;
    }
  }
  return {plain};
}

std::pair<std::vector<std::string>, bool> own_names(const NameMap& names,
                                                    const std::string& canonical_name) {
  for (const auto& rule : names.rules()) {
    const auto gap = match(rule.theirs, canonical_name);
    if (!gap) continue;
    std::vector<std::string> own;
    for (const auto& pattern : rule.ours) own.push_back(filled(pattern, *gap));
    return {own, rule.turned};
  }
  return {{canonical_name}, false};
}

}  // namespace smp::hf
