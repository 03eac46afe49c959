// smp/hf.h: models as Hugging Face's transformers stores them: config.json, names and shapes of
// tensors, model.safetensors or its shards (docs/hugging_face.md).
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "smp/detail/export.h"
#include "smp/nn/decoder_layer.h"
#include "smp/nn/rotary_embedding.h"
#include "smp/state_dict.h"
#include "smp/text/token_ids.h"

namespace torch::nn {
class Module;
}

namespace smp {
class DistributedModelBase;
}

namespace smp::hf {

/// Families of models whose tensors this library knows by name and shape.
enum class Family : std::uint8_t {
  kLlama,    ///< Llama, Mistral, Qwen 2 and 3, Gemma
  kGpt2,     ///< GPT-2
  kBert,     ///< BERT with its head for masked tokens
  kRoberta,  ///< RoBERTa with its head for masked tokens
  kT5,       ///< T5 1.0 and 1.1, mT5
};

/// A Llama-shaped model. Members have the names of config.json, where it has one, and the defaults
/// of transformers. Sizes that are optional follow from others.
struct SMP_API LlamaConfig {
  std::string model_type = "llama";  ///< or mistral, qwen2, qwen3, gemma
  std::int64_t vocab_size = 32000;
  std::int64_t hidden_size = 4096;
  std::int64_t intermediate_size = 11008;
  std::int64_t num_hidden_layers = 32;
  std::int64_t num_attention_heads = 32;
  std::optional<std::int64_t> num_key_value_heads = {};  ///< default: num_attention_heads
  std::optional<std::int64_t> head_dim = {};  ///< default: hidden_size / num_attention_heads
  std::int64_t max_position_embeddings = 2048;
  double rms_norm_eps = 1e-6;
  /// Of `rope_parameters`, or of `rope_theta` and `rope_scaling`; its head_dim is not used.
  nn::RotaryEmbeddingOptions rope{0};
  bool tie_word_embeddings = false;
  std::optional<std::int64_t> sliding_window = {};  ///< of Mistral, Qwen 2 and 3
  bool attention_bias = false;  ///< of all four projections; qwen2 has them in three, always
  bool mlp_bias = false;
  double attention_dropout = 0;
  std::string hidden_act = "silu";  ///< or gelu, gelu_pytorch_tanh
  double initializer_range = 0.02;
  std::optional<std::int64_t> bos_token_id = {}, pad_token_id = {};
  TokenIds eos_token_id = {};

  std::int64_t kv_heads() const { return num_key_value_heads.value_or(num_attention_heads); }
  std::int64_t head_size() const { return head_dim.value_or(hidden_size / num_attention_heads); }
  /// True of Qwen 3, whose queries and keys pass norms.
  bool qk_norm() const { return model_type == "qwen3"; }
  /// True of Gemma: norms have weights about zero, and embeddings are scaled by sqrt(hidden_size).
  bool is_gemma() const { return model_type == "gemma"; }
  /// Returns the options of the model's norms.
  nn::RMSNormOptions norm() const;
  /// Returns the options of one block. @throws UnsupportedError  hidden_act is unknown.
  nn::DecoderLayerOptions layer() const;
};

/// GPT-2; names and defaults as above.
struct SMP_API Gpt2Config {
  std::int64_t vocab_size = 50257;
  std::int64_t n_positions = 1024;
  std::int64_t n_embd = 768;
  std::int64_t n_layer = 12;
  std::int64_t n_head = 12;
  std::optional<std::int64_t> n_inner = {};  ///< default: 4 n_embd
  double layer_norm_epsilon = 1e-5;
  std::string activation_function = "gelu_new";
  double initializer_range = 0.02;
  bool tie_word_embeddings = true;
  std::optional<std::int64_t> bos_token_id = 50256;
  TokenIds eos_token_id = 50256;
};

/// BERT and RoBERTa; names and defaults as above.
struct SMP_API BertConfig {
  std::string model_type = "bert";  ///< or roberta
  std::int64_t vocab_size = 30522;
  std::int64_t hidden_size = 768;
  std::int64_t num_hidden_layers = 12;
  std::int64_t num_attention_heads = 12;
  std::int64_t intermediate_size = 3072;
  std::int64_t max_position_embeddings = 512;
  std::int64_t type_vocab_size = 2;
  double layer_norm_eps = 1e-12;
  std::string hidden_act = "gelu";
  double initializer_range = 0.02;
  bool tie_word_embeddings = true;
  std::optional<std::int64_t> bos_token_id = {};
  TokenIds eos_token_id = {};
  std::optional<std::int64_t> pad_token_id = 0;  ///< RoBERTa: 1, after which positions begin
};

/// T5; names and defaults as above.
struct SMP_API T5Config {
  std::string model_type = "t5";  ///< or mt5
  std::int64_t vocab_size = 32128;
  std::int64_t d_model = 512;
  std::int64_t d_kv = 64;
  std::int64_t d_ff = 2048;
  std::int64_t num_layers = 6;
  std::optional<std::int64_t> num_decoder_layers = {};  ///< default: num_layers
  std::int64_t num_heads = 8;
  std::int64_t relative_attention_num_buckets = 32;
  std::int64_t relative_attention_max_distance = 128;
  double dropout_rate = 0.1;
  double layer_norm_epsilon = 1e-6;
  std::string feed_forward_proj = "relu";  ///< or gated-gelu: 1.1
  /// What config.json says; files may say otherwise, and these count (has_own_head()).
  bool tie_word_embeddings = true;
  /// Whether the head reads values scaled by 1/sqrt(d_model); default: tie_word_embeddings.
  std::optional<bool> scale_decoder_outputs = {};
  std::int64_t pad_token_id = 0, eos_token_id = 1, decoder_start_token_id = 0;

  bool is_gated() const { return feed_forward_proj.starts_with("gated-"); }
  bool scales_outputs() const { return scale_decoder_outputs.value_or(tie_word_embeddings); }
};

/// What a config.json says.
class SMP_API Config {
 public:
  using Sizes = std::variant<LlamaConfig, Gpt2Config, BertConfig, T5Config>;

  /// A model of these sizes; json() says what is in them.
  Config(Sizes sizes);                                            // NOLINT
  Config(LlamaConfig sizes) : Config(Sizes(std::move(sizes))) {}  // NOLINT
  Config(const Gpt2Config& sizes) : Config(Sizes(sizes)) {}       // NOLINT
  Config(BertConfig sizes) : Config(Sizes(std::move(sizes))) {}   // NOLINT
  Config(T5Config sizes) : Config(Sizes(std::move(sizes))) {}     // NOLINT
  /// Reads a config.json, or the one of a folder.
  /// @throws UsageError        it cannot be read, is no JSON, or a member has another type.
  /// @throws UnsupportedError  naming the model_type and those that are known; a member, as of
  ///                           another kind of attention, that the blocks of this library lack.
  static Config read(const std::string& path);
  /// Reads the text of one.
  /// @param text  JSON
  /// @param name  leads messages
  static Config parse(const std::string& text, const std::string& name = "config.json");

  Family family() const noexcept;
  const Sizes& sizes() const noexcept { return sizes_; }
  /// The sizes of a model of that family. @throws UsageError  it is of another.
  const LlamaConfig& llama() const;
  const Gpt2Config& gpt2() const;
  const BertConfig& bert() const;  ///< of kBert and kRoberta
  const T5Config& t5() const;
  /// Returns the text of a config.json: everything that was read, changed or not, or what follows
  /// from sizes(); its members come in the same order each time.
  const std::string& json() const noexcept { return json_; }

 private:
  Config(Sizes sizes, std::string json) : sizes_(std::move(sizes)), json_(std::move(json)) {}

  Sizes sizes_;
  std::string json_;
};

/// A tensor of a published model.
struct PublishedTensor {
  std::string name;                 ///< as transformers names it in a model with a head
  std::vector<std::int64_t> sizes;  ///< as in the file
};
/// Returns the tensors that transformers expects in the file of such a model, by its sizes alone:
/// the tied ones once.
SMP_API std::vector<PublishedTensor> published_tensors(const Config& config);

/// How the names and shapes of a model follow from published ones. What no rule speaks of keeps
/// its name and shape. Threads: as std::vector.
class SMP_API NameMap {
 public:
  struct Rule {
    /// A published name, in which {} stands for a number and * at the end for the rest, as in
    /// "transformer.h.{}.attn.c_attn.weight".
    std::string theirs;
    /// The model's name with as many {}, and * as there; several names share axis 0 of the tensor,
    /// once turned, in equal parts.
    std::vector<std::string> ours;
    /// True if the model has [outputs, inputs] where the file has [inputs, outputs], as GPT-2's.
    bool turned = false;
  };

  /// The rules of a family's published names for a model that nests its modules as transformers
  /// does, and whose products are torch::nn::Linear.
  NameMap(Family family);  // NOLINT
  /// Those of a family for nn::DistributedTransformerLayer (smp/tp.h) and its like: queries, keys
  /// and values apart, as `attention.query`, .. `output.second` below `layers`.
  /// @param family  kGpt2, kBert or kRoberta
  /// @param layers  the path of a layer in the model, with {} for its number, as in "h.{}"
  /// @param others  rules for what lies outside of the layers
  /// @throws UnsupportedError  another family.
  static NameMap distributed(Family family, const std::string& layers,
                             std::vector<Rule> others = {});

  Family family() const noexcept { return family_; }
  const std::vector<Rule>& rules() const noexcept { return rules_; }
  /// Adds rules, which come before those that are there.
  void add(const std::vector<Rule>& rules);

 private:
  Family family_;
  std::vector<Rule> rules_;
};

/// What load() found beside values.
struct LoadReport : LoadResult {
  /// Tensors of the file that the model need not have: masks, frequencies, numbers of positions,
  /// parts of further heads.
  std::vector<std::string> ignored;
  /// Names of the model whose dtype holds less than that of the file: values are rounded.
  std::vector<std::string> narrowed;
};

/// Returns true if a published model has a head with other values than its table of tokens, so that
/// a model for it must have two tensors. What its config.json says of it may be of another version.
/// Reads no more than these two. @throws as read()
SMP_API bool has_own_head(const std::string& path, Family family);

/// Reads the tensors of a published model under the names and in the shapes of `names`, on this
/// rank alone; the tied ones once.
///
/// `path` is a file, an index or a folder as of smp::load_safetensors(). Names may have prefixes
/// ("module.", that of the family or none), parts of compiled modules ("_orig_mod") and old names
/// of norms ("gamma"). Of tied tensors one name is enough.
/// @throws UsageError        as load_safetensors(); two tensors would have one name; tensors that
///                           are always one, as T5's tables, differ.
/// @throws UnsupportedError  as load_safetensors(): parts of tensors, as torch's distributed
///                           checkpoint writes.
SMP_API StateDict read(const std::string& path, const NameMap& names);

/// Loads a published model into `module`, one tensor at a time, as smp::load_state_dict() does.
/// @param module  gets the values
/// @param path    as of read()
/// @param names   how its names and shapes follow from published ones
/// @param strict  names that only one of both has are an error
/// @throws as read() and smp::load_state_dict(); UsageError  the model has one tensor, as its
///         table of tokens, where the file has two.
SMP_API LoadReport load(torch::nn::Module& module, const std::string& path, const NameMap& names,
                        bool strict = true);
/// Loads it into a model as DistributedModelBase::load_state_dict() does. Of a placed model each
/// stage reads what it owns, so all of them must see the file; else pp_rank 0 reads. All ranks call
/// it, between steps. With delayed initialisation the file must stay as it is until placement.
SMP_API LoadReport load(DistributedModelBase& model, const std::string& path, const NameMap& names,
                        bool strict = true);

struct SaveOptions {
  /// Written as config.json, with the dtype, and with `tie_word_embeddings` as the tensors say;
  /// nothing: the folder keeps the one it has.
  std::optional<Config> config = {};
  /// The dtype of floating-point tensors in the file; nothing: each keeps its own.
  std::optional<c10::ScalarType> dtype = {};
  /// The most bytes of tensors in one file; a larger tensor has a file of its own.
  std::uint64_t shard_bytes = 5'000'000'000;
  std::map<std::string, std::string> metadata = {};
};

/// What save() wrote.
struct SaveReport {
  std::vector<std::string> files;  ///< names in the folder, those of tensors in order
  std::uint64_t bytes = 0;         ///< of tensors
  /// Elements that changed when they were converted, and the largest change of one, relative to it.
  std::int64_t rounded = 0;
  double largest_change = 0;
};

/// Writes `dict`, which has the names and shapes of `names`, into a folder that from_pretrained()
/// reads: model.safetensors, or shards with model.safetensors.index.json, and config.json.
///
/// Until the last file is complete the folder holds the old model, then the new one, and nothing
/// of the old one. Other files, such as a tokenizer's, stay.
/// @throws UsageError        with `config`: names or shapes that are not published_tensors();
///                           values that a narrower dtype would make infinite; else as read().
/// @throws ResourceError     as smp::save_safetensors().
/// @throws UnsupportedError  a dtype that the format lacks.
SMP_API SaveReport save(const StateDict& dict, const std::string& folder, const NameMap& names,
                        const SaveOptions& options = {});
/// Writes a module of one process, one tensor at a time.
SMP_API SaveReport save(const torch::nn::Module& module, const std::string& folder,
                        const NameMap& names, const SaveOptions& options = {});
/// Writes a model from the ranks that own its parts, as smp::save_safetensors() does: who calls it,
/// and which replica writes, is as there. The rank that writes returns the report, others an empty
/// one.
SMP_API SaveReport save(const DistributedModelBase& model, const std::string& folder,
                        const NameMap& names, const SaveOptions& options = {});

}  // namespace smp::hf
