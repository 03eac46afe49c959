// config.json: both forms of rotary positions, defaults, and what is refused by name.
#include "hf/hf_testing.h"

namespace smp::hf {
namespace config_test {

using testing::AllOf;
using testing::HasSubstr;

Config parsed(const std::string& members) { return Config::parse("{" + members + "}"); }

std::string refused(const std::string& members) {
  return refusal<UnsupportedError>([&] { parsed(members); });
}

TEST(HfConfig, ReadsWhatOlderFilesLeaveOut) {
  const auto sizes = parsed(R"("architectures": ["LlamaForCausalLM"], "hidden_size": 64,
                               "num_attention_heads": 8)")
                         .llama();
  EXPECT_EQ(sizes.kv_heads(), 8);
  EXPECT_EQ(sizes.head_size(), 8);
  EXPECT_EQ(sizes.rope.rope_theta(), 10000);
  EXPECT_FALSE(sizes.tie_word_embeddings);
  EXPECT_FALSE(sizes.sliding_window);
  EXPECT_EQ(parsed(R"("model_type": "t5", "num_layers": 3)").t5().num_decoder_layers, std::nullopt);
  EXPECT_EQ(parsed(R"("model_type": "roberta")").bert().vocab_size, 50265);
  EXPECT_TRUE(parsed(R"("model_type": "gemma")").llama().tie_word_embeddings);
}

TEST(HfConfig, HasTheDefaultsOfTransformers) {
  const auto llama = [](const std::string& type) {
    return parsed(R"("model_type": ")" + type + "\"").llama();
  };
  const auto mistral = llama("mistral"), qwen = llama("qwen3"), gemma = llama("gemma");
  EXPECT_EQ(llama("llama").eos_token_id, 2);
  EXPECT_EQ(mistral.kv_heads(), 8);
  EXPECT_EQ(mistral.intermediate_size, 14336);
  EXPECT_EQ(mistral.max_position_embeddings, 131072);
  EXPECT_EQ(qwen.vocab_size, 151936);
  EXPECT_EQ(qwen.intermediate_size, 22016);
  EXPECT_EQ(qwen.head_size(), 128);
  EXPECT_TRUE(qwen.eos_token_id.empty());
  EXPECT_EQ(llama("qwen2").head_size(), 128);
  EXPECT_EQ(gemma.hidden_size, 3072);
  EXPECT_EQ(gemma.num_hidden_layers, 28);
  EXPECT_EQ(gemma.kv_heads(), 16);
  EXPECT_EQ(gemma.bos_token_id, 2);
  const auto mt5 = parsed(R"("model_type": "mt5")").t5();
  EXPECT_EQ(mt5.vocab_size, 250112);
  EXPECT_EQ(mt5.num_heads, 6);
  EXPECT_TRUE(mt5.is_gated());
  EXPECT_FALSE(mt5.tie_word_embeddings);
  EXPECT_FALSE(parsed(R"("model_type": "t5")").t5().is_gated());
}

TEST(HfConfig, ReadsRotaryPositionsInBothForms) {
  const std::string llama3 =
      R"("rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
         "original_max_position_embeddings": 8192)";
  for (const auto& text : {R"("rope_theta": 500000.0, "rope_scaling": {)" + llama3 + "}",
                           R"("rope_parameters": {"rope_theta": 500000.0, )" + llama3 + "}"}) {
    const auto rope = parsed(R"("model_type": "llama", )" + text).llama().rope;
    EXPECT_EQ(rope.scaling(), nn::RotaryScaling::kLlama3);
    EXPECT_EQ(rope.rope_theta(), 500000);
    EXPECT_EQ(rope.factor(), 8);
    EXPECT_EQ(rope.original_max_positions(), 8192);
  }
  const auto old =
      parsed(R"("model_type": "llama", "rope_scaling": {"type": "linear", "factor": 2})");
  EXPECT_EQ(old.llama().rope.scaling(), nn::RotaryScaling::kLinear);
  const auto inside = parsed(R"("model_type": "llama", "rope_theta": 7.0,
                                "rope_scaling": {"rope_type": "default", "rope_theta": 500.0})");
  EXPECT_EQ(inside.llama().rope.rope_theta(), 500) << "as transformers 5 has it";
}

TEST(HfConfig, ReadsRotaryPositionsThatItWrote) {
  for (const auto scaling :
       {nn::RotaryScaling::kDefault, nn::RotaryScaling::kLinear, nn::RotaryScaling::kDynamic,
        nn::RotaryScaling::kLlama3, nn::RotaryScaling::kYarn}) {
    LlamaConfig sizes;
    sizes.rope.rope_theta(5e5).scaling(scaling).original_max_positions(777);
    if (scaling != nn::RotaryScaling::kDefault) sizes.rope.factor(3);
    const bool llama3 = scaling == nn::RotaryScaling::kLlama3;
    const bool yarn = scaling == nn::RotaryScaling::kYarn;
    if (llama3) sizes.rope.low_freq_factor(2).high_freq_factor(5);
    if (yarn) sizes.rope.beta_fast(30).beta_slow(2).truncate(false).attention_factor(1.5);
    if (yarn) sizes.rope.mscale(0.5).mscale_all_dim(0.25);
    const auto rope = Config::parse(Config(sizes).json()).llama().rope;
    EXPECT_EQ(rope.scaling(), scaling);
    EXPECT_EQ(rope.rope_theta(), 5e5);
    EXPECT_EQ(rope.factor(), sizes.rope.factor());
    EXPECT_EQ(rope.original_max_positions() == 777, llama3 || yarn);
    EXPECT_EQ(rope.low_freq_factor(), sizes.rope.low_freq_factor());
    EXPECT_EQ(rope.high_freq_factor(), sizes.rope.high_freq_factor());
    EXPECT_EQ(rope.beta_fast(), sizes.rope.beta_fast());
    EXPECT_EQ(rope.beta_slow(), sizes.rope.beta_slow());
    EXPECT_EQ(rope.truncate(), sizes.rope.truncate());
    EXPECT_EQ(rope.attention_factor(), sizes.rope.attention_factor());
    EXPECT_EQ(rope.mscale(), sizes.rope.mscale());
    EXPECT_EQ(rope.mscale_all_dim(), sizes.rope.mscale_all_dim());
  }
}

TEST(HfConfig, WantsTheNumbersOfAScaling) {
  const auto with = [](const std::string& scaling) {
    const std::string text = R"("model_type": "llama", "max_position_embeddings": 2048, )";
    return text + R"("rope_scaling": {)" + scaling + "}";
  };
  const auto said = [&](const std::string& scaling) {
    return refusal([&] { parsed(with(scaling)); });
  };
  for (const char* type : {"linear", "dynamic", "llama3", "yarn"}) {
    EXPECT_THAT(said(R"("rope_type": ")" + std::string(type) + "\""),
                HasSubstr("needs \"factor\""));
  }
  EXPECT_THAT(said(R"("rope_type": "linear", "factor": null)"), HasSubstr("needs \"factor\""));
  EXPECT_THAT(said(R"("rope_type": "llama3", "factor": 8, "low_freq_factor": 1)"),
              HasSubstr("needs \"high_freq_factor\""));
  const auto yarn = parsed(
      with(R"("rope_type": "yarn", "factor": null, "original_max_position_embeddings": 512)"));
  EXPECT_EQ(yarn.llama().rope.factor(), 4) << "the contexts' ratio, as in transformers";
}

TEST(HfConfig, TakesWindowsAsTransformersDoes) {
  const auto window = [](const std::string& members) {
    return parsed(R"("num_hidden_layers": 2, )" + members).llama().sliding_window;
  };
  EXPECT_EQ(window(R"("model_type": "mistral")"), 4096);
  EXPECT_EQ(window(R"("model_type": "mistral", "sliding_window": null)"), std::nullopt);
  EXPECT_EQ(window(R"("model_type": "qwen2", "sliding_window": 7, "max_window_layers": 0)"),
            std::nullopt);  // not used
  const std::string used =
      R"("model_type": "qwen2", "sliding_window": 7, "use_sliding_window": true)";
  EXPECT_EQ(window(used + R"(, "max_window_layers": 0)"), 7);
  EXPECT_EQ(window(used), std::nullopt);  // from layer 28 on
  EXPECT_EQ(window(R"("model_type": "qwen2", "use_sliding_window": true, "max_window_layers": 0)"),
            4096);
  EXPECT_THAT(refused(R"("num_hidden_layers": 2, "max_window_layers": 1, )" + used),
              HasSubstr("1 of 2 layers"));
}

TEST(HfConfig, RefusesByName) {
  EXPECT_THAT(refused(R"("model_type": "mamba", "architectures": ["MambaForCausalLM"])"),
              AllOf(HasSubstr("\"mamba\""), HasSubstr("MambaForCausalLM"),
                    HasSubstr("llama (LlamaForCausalLM)"), HasSubstr("mt5")));
  EXPECT_THAT(refused(R"("model_type": "bert", "architectures": ["BertForQuestionAnswering"])"),
              HasSubstr("BertForQuestionAnswering"));
  EXPECT_THAT(refused(R"("model_type": "llama", "quantization_config": {})"),
              HasSubstr("quantization_config"));
  EXPECT_THAT(refused(R"("model_type": "llama", "rope_scaling": {"rope_type": "longrope"})"),
              AllOf(HasSubstr("longrope"), HasSubstr("yarn")));
  EXPECT_THAT(
      refused(R"("model_type": "llama", "rope_parameters": {"partial_rotary_factor": 0.5})"),
      HasSubstr("partial_rotary_factor"));
  EXPECT_THAT(refused(R"("model_type": "llama", "rope_parameters": {"rope_theta": 10000.0},
                         "partial_rotary_factor": 0.5)"),
              HasSubstr("partial_rotary_factor"));
  EXPECT_THAT(refused(R"("model_type": "llama", "rope_parameters": {
                         "full_attention": {"rope_theta": 1e6}})"),
              HasSubstr("positions of their own for \"full_attention\""));
  EXPECT_THAT(refused(R"("model_type": "gpt2", "scale_attn_by_inverse_layer_idx": true)"),
              HasSubstr("scale_attn_by_inverse_layer_idx"));
  EXPECT_THAT(refused(R"("model_type": "bert", "position_embedding_type": "relative_key")"),
              HasSubstr("relative_key"));
  EXPECT_THAT(refused(R"("model_type": "llama", "hidden_act": "relu")"), HasSubstr("relu"));
  EXPECT_THAT(refusal([] { parsed(R"("model_type": "llama", "hidden_size": "big")"); }),
              HasSubstr("hidden_size"));
  EXPECT_THAT(refusal([] { parsed(""); }), HasSubstr("neither"));
  EXPECT_THAT(refusal([] { parsed(R"("model_type": "gpt2")").llama(); }),
              HasSubstr("llama() of a model of type gpt2"));
}

TEST(HfConfig, RefusesSizesThatNoModelHas) {
  const auto said = [](const std::string& members) { return refusal([&] { parsed(members); }); };
  EXPECT_THAT(said(R"("model_type": "llama", "num_attention_heads": 0)"),
              HasSubstr("num_attention_heads is 0, expected 1 or more"));
  EXPECT_THAT(said(R"("model_type": "llama", "num_key_value_heads": 0)"),
              HasSubstr("num_key_value_heads is 0"));
  EXPECT_THAT(said(R"("model_type": "gpt2", "n_layer": -1)"),
              HasSubstr("n_layer is -1, expected 0 or more"));
  EXPECT_THAT(said(R"("model_type": "t5", "d_ff": -4)"), HasSubstr("d_ff is -4"));
  EXPECT_EQ(said(R"("model_type": "llama", "pad_token_id": -1, "num_hidden_layers": 0)"),
            "accepted");
}

/// What is written is read as the same model, by its tensors and by its text.
TEST(HfConfig, IsWrittenAsItIsRead) {
  for (const auto& sample : samples()) {
    SCOPED_TRACE(sample.name);
    const auto again = Config::parse(sample.config.json());
    EXPECT_EQ(again.family(), sample.family());
    EXPECT_EQ(Config(again.sizes()).json(), sample.config.json());
    const auto names = published_tensors(sample.config), more = published_tensors(again);
    ASSERT_EQ(names.size(), more.size());
    for (std::size_t i = 0; i < names.size(); ++i) {
      EXPECT_EQ(names[i].name, more[i].name);
      EXPECT_EQ(names[i].sizes, more[i].sizes);
    }
  }
  const std::string text = R"({"model_type": "gpt2", "n_layer": 1, "odd": [1, 2]})";
  EXPECT_EQ(Config::parse(text).json(), text);
}

TEST(HfConfig, KeepsEachTokenThatEndsAText) {
  const auto ends = [](const std::string& value) {
    return parsed(R"("model_type": "llama", "eos_token_id": )" + value).llama();
  };
  const auto written = [](LlamaConfig sizes) {
    return Config::parse(Config(std::move(sizes)).json()).llama().eos_token_id;
  };
  EXPECT_EQ(ends("[5, 6]").eos_token_id, TokenIds({5, 6}));
  EXPECT_EQ(written(ends("[5, 6]")), TokenIds({5, 6}));
  EXPECT_EQ(ends("5").eos_token_id, 5);
  EXPECT_THAT(Config(ends("[5]")).json(), HasSubstr("\"eos_token_id\": 5,"));
  EXPECT_TRUE(ends("null").eos_token_id.empty());
  EXPECT_TRUE(written(ends("null")).empty());
  EXPECT_THAT(refusal<UsageError>([&] { ends("[5, \"</s>\"]"); }), HasSubstr("eos_token_id"));
}

class WrittenConfig : public FolderTest {};

TEST_F(WrittenConfig, KeepsWhatItDoesNotKnowAndSaysWhatTheTensorsAre) {
  auto sizes = small_llama("llama", 4);
  sizes.num_hidden_layers = 0;
  auto text = Config(sizes).json();
  text.insert(text.find('{') + 1, R"("torch_dtype": "float32", "odd": {"a": [1]}, )");
  const auto config = Config::parse(text);
  save({{"model.embed_tokens.weight", torch::ones({23, 16})},
        {"model.norm.weight", torch::ones({16})}},
       folder(), Family::kLlama, {.config = config, .dtype = torch::kBFloat16});
  const auto written = Config::read(folder()).json();
  EXPECT_THAT(written, AllOf(HasSubstr("\"odd\""), HasSubstr(R"("dtype": "bfloat16")"),
                             HasSubstr(R"("tie_word_embeddings": true)"),
                             testing::Not(HasSubstr("torch_dtype"))));
}

}  // namespace config_test
}  // namespace smp::hf
