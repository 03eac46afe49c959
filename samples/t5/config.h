// samples/t5/config.h: the hyper-parameters of a T5, named as in the public `config.json` files.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace t5 {

/// One T5. The defaults are those of the public `t5-small`.
struct T5Config {
  int64_t vocab_size = 32128;
  int64_t d_model = 512;           ///< width of the residual stream
  int64_t d_kv = 64;               ///< width of one head; heads x d_kv need not equal d_model
  int64_t d_ff = 2048;             ///< inner width of the feed-forward layers
  int64_t num_layers = 6;          ///< encoder blocks
  int64_t num_decoder_layers = 6;  ///< decoder blocks
  int64_t num_heads = 8;
  int64_t relative_attention_num_buckets = 32;
  int64_t relative_attention_max_distance = 128;
  double dropout_rate = 0.1;
  double layer_norm_epsilon = 1e-6;
  bool is_gated_act = false;        ///< gated GELU (T5 1.1 and later) instead of ReLU
  bool tie_word_embeddings = true;  ///< the logits reuse the embedding table

  int64_t pad_token_id = 0;  ///< fills up short inputs; also what the decoder starts from
  int64_t eos_token_id = 1;
  int64_t ignored_label = -100;  ///< a label with this value has no loss

  /// The configuration called `name`; throws std::invalid_argument listing the names if unknown.
  ///
  /// `tiny` and `demo` read bytes (vocabulary of ByT5, see corpus.h); the others have the shapes of
  /// the public checkpoints of that name.
  static T5Config preset(std::string_view name);
  static std::vector<std::string> preset_names();
};

}  // namespace t5
