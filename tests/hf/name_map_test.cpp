// Patterns of names, and rules made of them.
#include "hf/name_map.h"

#include <gmock/gmock.h>

#include "hf/family_names.h"
#include "hf/name_pattern.h"
#include "support/refusal.h"

namespace smp::hf {
namespace name_map_test {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Optional;

TEST(NamePattern, FindsNumbersAndTheRest) {
  EXPECT_THAT(match("h.{}.ln.weight", "h.12.ln.weight"), Optional(ElementsAre("12")));
  EXPECT_THAT(match("layer{}.*", "layer3.a.b"), Optional(ElementsAre("3", "a.b")));
  EXPECT_THAT(match("{}.{}", "1.22"), Optional(ElementsAre("1", "22")));
  EXPECT_THAT(match("a", "a"), Optional(ElementsAre()));
  for (const char* other :
       {"h..ln.weight", "h.x.ln.weight", "h.1.ln.weights", "h.1.ln", "h.1", ""}) {
    EXPECT_EQ(match("h.{}.ln.weight", other), std::nullopt) << other;
  }
  EXPECT_EQ(filled("layer{}.*", {"3", "a.b"}), "layer3.a.b");
  EXPECT_EQ(gaps("a.{}.{}.*"), 3u);
}

TEST(NameMap, RulesThatAreAddedComeFirst) {
  NameMap names(Family::kGpt2);
  names.add({{"transformer.h.{}.attn.c_attn.weight", {"b{}.q", "b{}.k"}, true},
             {"transformer.h.{}.*", {"other{}.*"}}});
  EXPECT_EQ(published_part(names, "b7.k"),
            (Part{"transformer.h.7.attn.c_attn.weight", 1, 2, true}));
  EXPECT_EQ(published_part(names, "other1.ln_1.bias"), (Part{"transformer.h.1.ln_1.bias"}));
  EXPECT_EQ(published_part(names, "wte.weight"), (Part{"transformer.wte.weight"}));
  EXPECT_THAT(own_names(names, "transformer.h.7.attn.c_attn.weight").first,
              ElementsAre("b7.q", "b7.k"));
  EXPECT_THAT(own_names(names, "transformer.h.7.mlp.c_fc.weight").first,
              ElementsAre("other7.mlp.c_fc.weight"));
  EXPECT_THAT(refusal([&] { names.add({{"a.{}", {"b"}}}); }), HasSubstr("\"b\" 0"));
  EXPECT_THAT(refusal([&] { names.add({{"a", {}}}); }), HasSubstr("no name of the model"));
  EXPECT_THAT(refusal<UnsupportedError>([&] { NameMap::distributed(Family::kT5, "h.{}"); }),
              HasSubstr("GPT-2, BERT and RoBERTa"));
}

TEST(FamilyNames, OnlyWhatBelongsBelowThePrefixGetsIt) {
  EXPECT_EQ(canonical(Family::kLlama, "layers.0.mlp.x"), "model.layers.0.mlp.x");
  EXPECT_EQ(canonical(Family::kLlama, "lm_head.weight"), "lm_head.weight");
  EXPECT_EQ(canonical(Family::kLlama, "module.module._orig_mod.norm.weight"), "model.norm.weight");
  EXPECT_EQ(canonical(Family::kBert, "cls.predictions.transform.LayerNorm.gamma"),
            "cls.predictions.transform.LayerNorm.weight");
  EXPECT_EQ(canonical(Family::kT5, "encoder.block.0"), "encoder.block.0");
  EXPECT_EQ(canonical(Family::kRoberta, "encoder.layer.0"), "roberta.encoder.layer.0");
}

}  // namespace name_map_test
}  // namespace smp::hf
