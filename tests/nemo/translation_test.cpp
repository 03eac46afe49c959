// Configurations of NeMo and Megatron-LM become settings, sizes and flags, and nothing is lost in
// silence.
#include "nemo/translation.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <string>

#include "base/files.h"
#include "config/config.h"
#include "smp/error.h"
#include "smp/hf.h"
#include "support/refusal.h"

namespace smp::nemo {
namespace translation_test {

using base::Json;
using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

Translation translated(const std::string& text) { return from_nemo(text, "here"); }

Translation of_file(const std::string& name) {
  return from_nemo(base::read_file(std::string(SMP_TEST_DATA) + "/nemo/" + name), name);
}

TEST(NemoTranslation, OfALlama) {
  const auto all = of_file("llama.yaml");
  EXPECT_EQ(all.ranks, 128);
  EXPECT_EQ(all.settings, Json::parse(R"({
    "pipeline_parallel_degree": 4, "tensor_parallel_degree": 4, "prescaled_batch": true,
    "optimize": "sequence", "microbatches": 32, "precision": "bf16",
    "checkpoint_attentions": true, "seed": 1234, "shard_optimizer_state": true})"));
  EXPECT_EQ(all.recipe, Json::parse(R"({
    "pp": 4, "tp": 4, "rows": 256, "micro-rows": 1, "dtype": "float32", "recompute": "attention", "seed": 1234,
    "lr": 3e-4, "clip": 1.0, "weight-decay": 0.1, "steps": 100000, "evaluate-every": 500,
    "warmup": 500, "decay": "cosine", "decay-steps": 97000, "floor": 0.1, "context": 4096,
    "tokenizer": "/data/llama/tokenizer.model"})"));
  EXPECT_EQ(all.model, Json::parse(R"({
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 4096,
    "intermediate_size": 8192, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5,
    "rope_theta": 1e6, "hidden_act": "silu", "initializer_range": 0.01,
    "tie_word_embeddings": false, "attention_dropout": 0.0})"));
  EXPECT_THAT(
      all.lost,
      ElementsAre(StartsWith("weight decay: "), StartsWith("model.optim.betas = [0.9,0.98]: "),
                  StartsWith("model.data.data_prefix = "),
                  StartsWith("model.data.reset_position_ids = true: "), StartsWith("vocab_size: "),
                  StartsWith("common.hidden_dropout = "), StartsWith("common.attention_dropout = "),
                  StartsWith("common.ffn_dropout = "),
                  StartsWith("model.num_moe_experts = 8: has no counterpart")));
  EXPECT_THAT(all.needless, Contains(StartsWith("model.masked_softmax_fusion = true: ")));
  EXPECT_THAT(all.needless, Contains("model.fp8 = false: switched off"));
}

TEST(NemoTranslation, OfAGpt2OfMegatron) {
  const auto all = of_file("megatron.yaml");
  EXPECT_FALSE(all.ranks);
  EXPECT_EQ(all.settings, Json::parse(R"({
    "pipeline_parallel_degree": 3, "tensor_parallel_degree": 1, "precision": "fp16",
    "checkpoint_modules": "DecoderLayer"})"));
  EXPECT_EQ(all.recipe, Json::parse(R"({
    "pp": 3, "tp": 1, "rows": 64, "micro-rows": 4, "dtype": "float32", "recompute": "layers", "lr": 6e-4, "clip": 1,
    "steps": 4096, "warmup": 64, "decay": "linear", "decay-steps": 3936, "floor": 0.1,
    "context": 1024})"));
  EXPECT_EQ(all.model.at("model_type"), "gpt2");
  EXPECT_EQ(all.model.at("n_inner"), 3072);
  EXPECT_EQ(all.model.at("vocab_size"), 50257);
  EXPECT_EQ(all.model.at("resid_pdrop"), 0.1);
  EXPECT_THAT(all.lost,
              ElementsAre(StartsWith("model_parallel.virtual_pipeline_model_parallel_size = 2: "),
                          StartsWith("language_model.recompute_method = \"block\", "
                                     "language_model.recompute_num_layers = 2: "),
                          StartsWith("adam_beta2 = 0.999: the recipe has 0.95"),
                          StartsWith("language_model.memory_efficient_layer_norm = true: "),
                          StartsWith("rank = \"${oc.env:RANK}\": has no counterpart")))
      << text_of(all, "");
}

/// What is written is read by those for whom it is: settings and config.json.
TEST(NemoTranslation, IsWhatTheLibraryReads) {
  auto all = of_file("llama.yaml");
  all.model["vocab_size"] = 32000;
  const auto folder = (std::filesystem::temp_directory_path() / "smp-nemo-test").string();
  write(all, folder);
  base::ConfigInput input;
  input.flags = {{"config", folder + "/smp.json"}};
  input.world_size = 128;
  const auto config = base::resolve_config(input);
  EXPECT_EQ(config.values().tensor_parallel_degree, 4);
  EXPECT_EQ(config.values().optimize, "sequence");
  const auto model = hf::Config::read(folder).llama();
  EXPECT_EQ(model.kv_heads(), 8);
  EXPECT_EQ(model.rope.rope_theta(), 1e6);
  EXPECT_THAT(text_of(all, folder),
              AllOf(HasSubstr("mpirun -n 128 llama --config " + folder +
                              "/config.json --smp.config " + folder + "/smp.json --pp 4 --tp 4 "),
                    Not(HasSubstr("settings ("))));
  std::filesystem::remove_all(folder);
}

TEST(NemoTranslation, PrecisionsGoByTheirMasters) {
  const auto precision = [](const std::string& text) {
    return translated("trainer: {precision: " + text + "}").settings.value("precision", "");
  };
  EXPECT_EQ(precision("32"), "fp32");
  EXPECT_EQ(precision("bf16-mixed"), "amp");
  EXPECT_EQ(precision("bf16}\nmodel: {megatron_amp_O2: true"), "bf16");
  EXPECT_EQ(precision("16}\nmodel: {megatron_amp_O2: true"), "fp16");
  EXPECT_EQ(precision("bf16-true"), "bf16_sr");
  EXPECT_THAT(translated("trainer: {precision: 64}").lost,
              ElementsAre(StartsWith("trainer.precision = 64: ")));
}

/// The configuration in a checkpoint is that of the model alone.
TEST(NemoTranslation, ClipsWhereTheyClip) {
  const auto clip = [](const std::string& text) {
    return translated(text).recipe.value("clip", base::Json());
  };
  EXPECT_EQ(clip("trainer: {gradient_clip_val: 0.5}"), 0.5);
  EXPECT_EQ(clip("clip_grad: 1"), 1);
  for (const char* never : {"trainer: {gradient_clip_val: 0}", "trainer: {gradient_clip_val: null}",
                            "trainer: {devices: 2}", "clip_grad: 0.0"}) {
    EXPECT_EQ(clip(never), 1e30) << never;
  }
  EXPECT_TRUE(clip("num_layers: 2").is_null()) << "who trained a model alone is not known";
}

TEST(NemoTranslation, DecaysWeightsWhereTheyDecay) {
  const auto decay = [](const std::string& text) {
    return translated(text).recipe.value("weight-decay", base::Json());
  };
  EXPECT_EQ(decay("model: {optim: {lr: 1e-3, weight_decay: 0.2}}"), 0.2);
  EXPECT_EQ(decay("model: {optim: {lr: 1e-3}}"), 0);
  EXPECT_TRUE(decay("num_layers: 2").is_null());
}

TEST(NemoTranslation, OfAModelAlone) {
  const auto all = translated(
      "num_layers: 2\nhidden_size: 8\nnum_attention_heads: 2\nseed: 3\nencoder_seq_length: 16");
  EXPECT_EQ(all.model.at("n_layer"), 2);
  EXPECT_EQ(all.settings.at("seed"), 3);
  EXPECT_EQ(all.recipe.at("context"), 16);
}

TEST(NemoTranslation, ModelsOfNoKnownKindAreSaidToBe) {
  const auto all = translated(
      "model: {num_layers: 2, hidden_size: 8, num_attention_heads: 2, normalization: layernorm1p}");
  EXPECT_TRUE(all.model.is_null());
  EXPECT_THAT(all.lost, ElementsAre(HasSubstr("neither a Llama")));
  EXPECT_THAT(text_of(all, ""), AllOf(Not(HasSubstr("\nmodel (")), Not(HasSubstr(" --config "))));
}

TEST(NemoTranslation, WhatDoesNotFitIsRefused) {
  const auto refused = [](const std::string& text) {
    return refusal<UsageError>([&] { translated(text); });
  };
  EXPECT_THAT(refused("trainer: {devices: 6}\nmodel: {tensor_model_parallel_size: 4}"),
              HasSubstr("6 ranks (6 devices on each of 1 nodes) are no multiple of 1 stages x 4"));
  EXPECT_THAT(
      refused("trainer: {devices: 2}\nmodel: {global_batch_size: 5, micro_batch_size: 1}"),
      HasSubstr("model.global_batch_size = 5 is no multiple of model.micro_batch_size = 1 x 2"));
  EXPECT_THAT(refused("model: {optim: {lr: 1 e-4}}"),
              HasSubstr("model.optim.lr = \"1 e-4\", expected a number"));
  EXPECT_THAT(refused("model: {seed: 1.5}"), HasSubstr("model.seed = 1.5, expected an integer"));
  EXPECT_THAT(refused("model: {seed: 1}\nseed: 2"), HasSubstr("mean the same; keep one"));
  for (const char* nodes : {"0", "-1", "1000000000000"}) {
    EXPECT_THAT(refused(base::concat("trainer: {devices: 2, num_nodes: ", nodes, "}")),
                HasSubstr(base::concat("num_nodes = ", nodes, ", expected 1 to 65536")));
  }
  EXPECT_THAT(refused("trainer: {devices: 2}\nmodel: {tensor_model_parallel_size: 4294967296, "
                      "pipeline_model_parallel_size: 4294967296}"),
              HasSubstr("tensor_model_parallel_size = 4294967296, expected 1 to 65536"));
  EXPECT_THAT(refused("trainer: {devices: 5000000000}"), HasSubstr("expected 1 to 65536"));
  EXPECT_THAT(refused("model: {global_batch_size: 0}"), HasSubstr("= 0, expected 1 to"));
  EXPECT_THAT(refused("model: {seed: -3}"), HasSubstr("-3, expected an integer from 0 to"));
  EXPECT_THAT(refused("model: {optim: {sched: {name: cosine, warmup_steps: -2}}}"),
              HasSubstr("warmup_steps = -2, expected 0 to"));
  EXPECT_THAT(refused("model: {optim: {lr: .nan}}"), HasSubstr("model.optim.lr is infinite or"));
  EXPECT_THAT(refused("model: {optim: {lr: 1e999}}"), HasSubstr("model.optim.lr is infinite or"));
  EXPECT_THAT(refused("trainer: {gradient_clip_val: -.inf}"), HasSubstr("expected a finite"));
  EXPECT_THAT(refused("[1, 2]"), HasSubstr("expected a map of keys, found [1,2]"));
  EXPECT_THAT(translated("model: {seed: '?\?\?', num_layers: '${x}'}").lost,
              Contains(StartsWith("model.seed = \"?\?\?\": known to the program of NeMo only")));
}

}  // namespace translation_test
}  // namespace smp::nemo
