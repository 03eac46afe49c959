// Models of each family in small, and a folder for what a test writes.
#pragma once

#include <gmock/gmock.h>
#include <torch/torch.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "smp/checkpoint.h"
#include "smp/hf.h"
#include "support/refusal.h"

namespace smp::hf {

/// A model of transformers whose weights lie in tests/data.
struct Sample {
  std::string name;
  Config config;

  std::string file() const {
    return std::string(SMP_TEST_DATA) + "/" + name + "_weights.safetensors";
  }
  Family family() const { return config.family(); }
};

inline LlamaConfig small_llama(const std::string& model_type, std::int64_t kv_heads) {
  LlamaConfig sizes;
  sizes.model_type = model_type;
  sizes.vocab_size = 23;
  sizes.hidden_size = 16;
  sizes.intermediate_size = 12;
  sizes.num_hidden_layers = 2;
  sizes.num_attention_heads = 4;
  sizes.num_key_value_heads = kv_heads;
  sizes.head_dim = 8;
  sizes.eos_token_id = 1;
  sizes.pad_token_id = 0;
  return sizes;
}

inline LlamaConfig small_llama3() {
  auto sizes = small_llama("llama", 2);
  sizes.tie_word_embeddings = true;
  sizes.rope.scaling(nn::RotaryScaling::kLlama3).rope_theta(500).factor(4);
  sizes.rope.original_max_positions(16);
  return sizes;
}

inline LlamaConfig small_mistral() {
  auto sizes = small_llama("mistral", 1);
  sizes.sliding_window = 3;
  return sizes;
}

inline LlamaConfig small_gemma() {
  auto sizes = small_llama("gemma", 2);
  sizes.tie_word_embeddings = true;
  sizes.hidden_act = "gelu_pytorch_tanh";
  return sizes;
}

inline BertConfig small_bert(const std::string& model_type) {
  BertConfig sizes;
  sizes.model_type = model_type;
  sizes.vocab_size = 23;
  sizes.hidden_size = 8;
  sizes.num_hidden_layers = 2;
  sizes.num_attention_heads = 2;
  sizes.intermediate_size = 12;
  sizes.max_position_embeddings = model_type == "bert" ? 10 : 14;
  sizes.type_vocab_size = model_type == "bert" ? 2 : 1;
  sizes.pad_token_id = model_type == "bert" ? 0 : 1;
  return sizes;
}

inline T5Config small_t5(bool gated) {
  T5Config sizes;
  sizes.vocab_size = 23;
  sizes.d_model = 8;
  sizes.d_kv = 5;
  sizes.d_ff = 12;
  sizes.num_layers = 2;
  sizes.num_heads = 2;
  sizes.relative_attention_num_buckets = 8;
  sizes.relative_attention_max_distance = 12;
  sizes.feed_forward_proj = gated ? "gated-gelu" : "relu";
  sizes.tie_word_embeddings = !gated;
  return sizes;
}

inline Gpt2Config small_gpt2() {
  Gpt2Config sizes;
  sizes.vocab_size = 23;
  sizes.n_positions = 10;
  sizes.n_embd = 8;
  sizes.n_layer = 2;
  sizes.n_head = 2;
  return sizes;
}

inline std::vector<Sample> samples() {
  return {{"llama", small_llama("llama", 4)}, {"llama3", small_llama3()},
          {"qwen3", small_llama("qwen3", 2)}, {"mistral", small_mistral()},
          {"gemma", small_gemma()},           {"gpt2", small_gpt2()},
          {"bert", small_bert("bert")},       {"roberta", small_bert("roberta")},
          {"t5_v1_0", small_t5(false)},       {"t5_v1_1", small_t5(true)}};
}

/// A test that writes into a folder.
class FolderTest : public testing::Test {
 protected:
  FolderTest() { std::filesystem::create_directories(folder_); }
  ~FolderTest() override { std::filesystem::remove_all(folder_); }
  const std::string& folder() const { return folder_; }
  std::string path(const std::string& name) const { return folder_ + "/" + name; }
  void write(const std::string& name, const std::string& text) const {
    std::ofstream(path(name), std::ios::binary | std::ios::trunc) << text;
  }
  std::vector<std::string> files() const {
    std::vector<std::string> names;
    for (const auto& item : std::filesystem::directory_iterator(folder_)) {
      names.push_back(item.path().filename().string());
    }
    std::sort(names.begin(), names.end());
    return names;
  }
  /// Writes tensors under published names to a file, and returns its path.
  std::string published(const StateDict& dict, const std::string& name = "a.safetensors") const {
    save_safetensors(dict, path(name));
    return path(name);
  }

 private:
  std::string folder_ = testing::TempDir() + "hf." + std::to_string(getpid()) + "." +
                        testing::UnitTest::GetInstance()->current_test_info()->name();
};

inline torch::Tensor bits_of(const torch::Tensor& tensor) {
  return tensor.contiguous().flatten().view(torch::kByte);
}

/// Equal names, dtypes, shapes and bits, in any order.
inline void expect_same_tensors(const StateDict& ours, const StateDict& expected) {
  EXPECT_THAT(ours.names(), testing::UnorderedElementsAreArray(expected.names()));
  for (const auto& [name, tensor] : expected) {
    if (!ours.contains(name)) continue;
    EXPECT_EQ(ours.at(name).scalar_type(), tensor.scalar_type()) << name;
    EXPECT_EQ(ours.at(name).sizes(), tensor.sizes()) << name;
    EXPECT_TRUE(torch::equal(bits_of(ours.at(name)), bits_of(tensor))) << name;
  }
}

}  // namespace smp::hf
