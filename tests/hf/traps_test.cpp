// What files of other programs have that the plain reader of one family would get wrong.
#include "hf/hf_testing.h"
#include "samples/reference.h"

namespace smp::hf {
namespace traps_test {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::UnorderedElementsAre;
using torch::Tensor;

/// A table, a head or the table as head, and one more matrix.
struct NetImpl : torch::nn::Module {
  explicit NetImpl(bool tied) {
    auto inner = std::make_shared<torch::nn::Module>();
    table = inner->register_module("embed_tokens", torch::nn::Embedding(3, 2));
    norm = inner->register_module("norm",
                                  torch::nn::Linear(torch::nn::LinearOptions(2, 1).bias(false)));
    register_module("model", inner);
    if (!tied) {
      head =
          register_module("lm_head", torch::nn::Linear(torch::nn::LinearOptions(2, 3).bias(false)));
    }
  }
  torch::nn::Embedding table{nullptr};
  torch::nn::Linear norm{nullptr}, head{nullptr};
};
TORCH_MODULE(Net);

class Traps : public FolderTest {
 protected:
  const Tensor table_ = torch::arange(6, torch::kFloat).view({3, 2});
  const Tensor norm_ = torch::tensor({{7.f, 8.f}});
};

/// A head that was padded, say.
TEST_F(Traps, AHeadOfAnotherShapeIsAnotherHead) {
  const auto file = published({{"model.embed_tokens.weight", table_},
                               {"lm_head.weight", torch::cat({table_, table_ * 0})}});
  EXPECT_TRUE(has_own_head(file, Family::kLlama));
  Net tied(true);
  EXPECT_THAT(refusal([&] { load(*tied, file, Family::kLlama); }),
              AllOf(HasSubstr("[3, 2]"), HasSubstr("[6, 2]"), HasSubstr("has_own_head")));
}

TEST_F(Traps, PrefixesAndPartsOfCompiledModulesFallAway) {
  for (const std::string prefix :
       {"", "model.", "module.model.", "_orig_mod.module.model.", "module.", "model._orig_mod."}) {
    SCOPED_TRACE(prefix);
    Net net(true);
    const auto file = published(
        {{prefix + "embed_tokens._orig_mod.weight", table_}, {prefix + "norm.weight", norm_}});
    const auto report = load(*net, file, Family::kLlama);
    EXPECT_THAT(report.missing_keys, IsEmpty());
    EXPECT_TRUE(torch::equal(net->table->weight, table_));
    EXPECT_TRUE(torch::equal(net->norm->weight, norm_));
  }
  const auto twice = published({{"model.norm.weight", norm_}, {"norm.weight", norm_ + 1}});
  EXPECT_THAT(refusal([&] { read(twice, Family::kLlama); }),
              HasSubstr("\"model.norm.weight\" and \"norm.weight\" are the same tensor"));
}

/// The model's own wrappers do not count either.
TEST_F(Traps, AModelBelowAnotherIsFound) {
  auto wrapper = std::make_shared<torch::nn::Module>();
  Net net(true);
  wrapper->register_module("module", net.ptr());
  load(*wrapper, published({{"embed_tokens.weight", table_}, {"norm.weight", norm_}}),
       Family::kLlama);
  EXPECT_TRUE(torch::equal(net->table->weight, table_));
  save(*wrapper, path("out"), Family::kLlama);
  expect_same_tensors(load_safetensors(path("out")),
                      {{"model.embed_tokens.weight", table_}, {"model.norm.weight", norm_}});
}

TEST_F(Traps, TheFilesTensorsDecideOnAHead) {
  const auto other = table_ + 1;
  const StateDict none{{"model.embed_tokens.weight", table_}, {"model.norm.weight", norm_}};
  StateDict equal = none, own = none;
  equal.insert("lm_head.weight", table_.clone());
  own.insert("lm_head.weight", other);
  const StateDict only{{"lm_head.weight", table_}, {"model.norm.weight", norm_}};
  for (const auto& dict : {none, equal, only}) {
    const auto file = published(dict);
    EXPECT_FALSE(has_own_head(file, Family::kLlama));
    for (const bool tied : {true, false}) {
      Net net(tied);
      load(*net, file, Family::kLlama);
      EXPECT_TRUE(torch::equal(net->table->weight, table_));
      EXPECT_TRUE(tied || torch::equal(net->head->weight, table_));
    }
  }
  const auto file = published(own);
  EXPECT_TRUE(has_own_head(file, Family::kLlama));
  Net untied(false), tied(true);
  load(*untied, file, Family::kLlama);
  EXPECT_TRUE(torch::equal(untied->head->weight, other));
  const auto before = tied->table->weight.detach().clone();
  EXPECT_THAT(refusal([&] { load(*tied, file, Family::kLlama); }),
              AllOf(HasSubstr("element [0, 0] is 0 in \"model.embed_tokens.weight\" and 1 in "
                              "\"lm_head.weight\""),
                    HasSubstr("has_own_head")));
  EXPECT_TRUE(torch::equal(tied->table->weight, before));
  EXPECT_THAT(
      read(file, Family::kLlama).names(),
      UnorderedElementsAre("model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"));
  EXPECT_FALSE(read(published(equal), Family::kLlama).contains("lm_head.weight"));
}

TEST_F(Traps, AHeadOfEightBitsIsComparedWithItsTable) {
  const auto eight = [&](const Tensor& values) { return values.to(torch::kFloat8_e4m3fn); };
  const auto small = torch::ones_like(table_);
  for (const bool own : {false, true}) {
    const auto file = published(
        {{"model.embed_tokens.weight", small}, {"lm_head.weight", eight(own ? small + 1 : small)}});
    EXPECT_EQ(has_own_head(file, Family::kLlama), own);
  }
}

/// One parameter under two names is published once; two are published as two, and the config says
/// so, whatever it said.
TEST_F(Traps, TheModelsTensorsDecideOnAHead) {
  auto sizes = small_llama("llama", 4);
  sizes.num_hidden_layers = 0;
  const auto table = torch::rand({23, 16}), norm = torch::rand({16});
  for (const bool flag : {true, false}) {
    sizes.tie_word_embeddings = flag;
    const SaveOptions options{.config = Config(sizes)};
    save({{"model.embed_tokens.weight", table},
          {"model.norm.weight", norm},
          {"lm_head.weight", table}},
         folder(), Family::kLlama, options);
    EXPECT_FALSE(load_safetensors(folder()).contains("lm_head.weight"));
    EXPECT_TRUE(Config::read(folder()).llama().tie_word_embeddings);
    save({{"model.embed_tokens.weight", table},
          {"model.norm.weight", norm},
          {"lm_head.weight", table.clone()}},
         folder(), Family::kLlama, options);
    EXPECT_TRUE(load_safetensors(folder()).contains("lm_head.weight"));
    EXPECT_FALSE(Config::read(folder()).llama().tie_word_embeddings);
  }
}

TEST_F(Traps, TablesOfT5AreOne) {
  const auto names = [](const StateDict& dict) { return dict.names(); };
  for (const std::string there : {"shared.weight", "encoder.embed_tokens.weight",
                                  "decoder.embed_tokens.weight", "lm_head.weight"}) {
    EXPECT_THAT(names(read(published({{there, table_}}), Family::kT5)),
                UnorderedElementsAre("shared.weight"));
  }
  EXPECT_THAT(names(read(published({{"shared.weight", table_},
                                    {"encoder.embed_tokens.weight", table_.clone()},
                                    {"lm_head.weight", table_ + 1}}),
                         Family::kT5)),
              UnorderedElementsAre("shared.weight", "lm_head.weight"));
  EXPECT_THAT(
      refusal([&] {
        read(published({{"shared.weight", table_}, {"encoder.embed_tokens.weight", table_ + 1}}),
             Family::kT5);
      }),
      AllOf(HasSubstr("encoder.embed_tokens.weight"), HasSubstr("another program")));
  EXPECT_THAT(refusal([&] {
                save({{"shared.weight", table_}, {"encoder.embed_tokens.weight", table_ + 1}},
                     folder(), Family::kT5);
              }),
              HasSubstr("register one tensor under both names"));
}

TEST_F(Traps, BuffersAndPartsOfOtherHeadsAreLeftOut) {
  const auto ones = torch::ones({2});
  const std::map<Family, std::pair<std::string, std::vector<std::string>>> all{
      {Family::kLlama, {"model.norm.weight", {"model.layers.0.self_attn.rotary_emb.inv_freq"}}},
      {Family::kGpt2,
       {"transformer.ln_f.weight", {"h.0.attn.bias", "transformer.h.1.attn.masked_bias"}}},
      {Family::kBert,
       {"bert.embeddings.LayerNorm.weight",
        {"bert.embeddings.position_ids", "pooler.dense.weight", "cls.seq_relationship.bias"}}},
      {Family::kRoberta,
       {"lm_head.bias", {"embeddings.position_ids", "roberta.pooler.dense.bias"}}},
      {Family::kT5,
       {"encoder.final_layer_norm.weight",
        {"decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"}}}};
  for (const auto& [family, named] : all) {
    const auto& [kept, dropped] = named;
    StateDict dict{{kept, ones}};
    for (const auto& name : dropped) dict.insert(name, ones.clone());
    const auto file = published(dict);
    EXPECT_THAT(read(file, family).names(), UnorderedElementsAre(kept));
    torch::nn::Module own;
    EXPECT_EQ(load(own, file, family, /*strict=*/false).ignored.size(), dropped.size());
    EXPECT_THAT(refusal([&] { load(own, file, family); }),
                AllOf(HasSubstr("unexpected: " + kept), testing::Not(HasSubstr(dropped[0]))));
  }
}

TEST_F(Traps, OldNamesOfNormsAreThoseOfToday) {
  const auto ones = torch::ones({2});
  const auto dict = read(published({{"bert.embeddings.LayerNorm.gamma", ones},
                                    {"bert.encoder.layer.0.output.LayerNorm.beta", ones * 2}}),
                         Family::kBert);
  expect_same_tensors(dict, {{"bert.embeddings.LayerNorm.weight", ones},
                             {"bert.encoder.layer.0.output.LayerNorm.bias", ones * 2}});
}

TEST_F(Traps, ShapesAndPartsThatDoNotFitAreNamed) {
  const auto distributed = NameMap::distributed(Family::kGpt2, "h.{}");
  const auto name = [](const std::string& part) { return "h.0.attention." + part + ".bias"; };
  const auto refused = [&](const StateDict& dict) {
    return refusal([&] { save(dict, folder(), distributed); });
  };
  EXPECT_THAT(refused({{name("query"), torch::ones({2})}, {name("value"), torch::ones({2})}}),
              AllOf(HasSubstr("made of 3"), HasSubstr("no \"h.0.attention.key.bias\"")));
  EXPECT_THAT(refused({{name("query"), torch::ones({2})},
                       {name("key"), torch::ones({3})},
                       {name("value"), torch::ones({2})}}),
              AllOf(HasSubstr("[3]"), HasSubstr("[2]"), HasSubstr(name("key"))));
  EXPECT_THAT(refused({{"wte.weight", table_}, {"transformer.wte.weight", table_ + 1}}),
              HasSubstr("would both be published as \"transformer.wte.weight\""));
  EXPECT_THAT(refusal([&] {
                read(published({{"h.0.attn.c_attn.bias", torch::ones({4})}}), distributed);
              }),
              AllOf(HasSubstr("[4]"), HasSubstr("cannot be cut into the 3")));
  EXPECT_THAT(refusal([&] {
                read(published({{"h.0.attn.c_attn.weight", torch::ones({4})}}), distributed);
              }),
              HasSubstr("expected [inputs, outputs]"));
  auto sizes = small_llama("llama", 4);
  sizes.num_hidden_layers = 0;
  EXPECT_THAT(
      refusal([&] {
        save({{"model.norm.weight", torch::ones({4})}, {"model.odd", table_}}, folder(),
             Family::kLlama, {.config = Config(sizes)});
      }),
      AllOf(HasSubstr("shape of model.norm.weight: [4]"), HasSubstr("unexpected: model.odd"),
            HasSubstr("missing: model.embed_tokens.weight")));
  EXPECT_THAT(files(), testing::Each(testing::Not(HasSubstr("model"))));  // nothing was written
}

TEST_F(Traps, PartsOfTorchsDistributedCheckpointAreRefused) {
  const auto shards = std::string(SMP_TEST_DATA) + "/dcp";
  EXPECT_THAT(refusal<UnsupportedError>([&] { read(shards + "/sharded", Family::kLlama); }),
              HasSubstr("distributed checkpoint"));
}

TEST_F(Traps, NarrowerModelsAreTold) {
  Net net(true);
  net->to(torch::kBFloat16);
  const auto report = load(*net,
                           published({{"model.embed_tokens.weight", table_},
                                      {"model.norm.weight", norm_.to(torch::kBFloat16)}}),
                           Family::kLlama);
  EXPECT_THAT(report.narrowed, testing::ElementsAre("model.embed_tokens.weight"));
}

}  // namespace traps_test
}  // namespace smp::hf
