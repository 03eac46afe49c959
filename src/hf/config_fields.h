// hf/config_fields.h: the members of each family's sizes and their names in config.json, once for
// reading and writing.
#pragma once

#include "smp/hf.h"

namespace smp::hf {

/// Calls `visit(name, member)` for each member that config.json names as it is called.
template <class Visitor, class Sizes>
void visit_llama(Visitor&& visit, Sizes& sizes) {
  visit("model_type", sizes.model_type);
  visit("vocab_size", sizes.vocab_size);
  visit("hidden_size", sizes.hidden_size);
  visit("intermediate_size", sizes.intermediate_size);
  visit("num_hidden_layers", sizes.num_hidden_layers);
  visit("num_attention_heads", sizes.num_attention_heads);
  visit("num_key_value_heads", sizes.num_key_value_heads);
  visit("head_dim", sizes.head_dim);
  visit("max_position_embeddings", sizes.max_position_embeddings);
  visit("rms_norm_eps", sizes.rms_norm_eps);
  visit("tie_word_embeddings", sizes.tie_word_embeddings);
  visit("sliding_window", sizes.sliding_window);
  visit("attention_bias", sizes.attention_bias);
  visit("mlp_bias", sizes.mlp_bias);
  visit("attention_dropout", sizes.attention_dropout);
  visit("hidden_act", sizes.hidden_act);
  visit("initializer_range", sizes.initializer_range);
  visit("bos_token_id", sizes.bos_token_id);
  visit("eos_token_id", sizes.eos_token_id);
  visit("pad_token_id", sizes.pad_token_id);
}

template <class Visitor, class Sizes>
void visit_gpt2(Visitor&& visit, Sizes& sizes) {
  visit("vocab_size", sizes.vocab_size);
  visit("n_positions", sizes.n_positions);
  visit("n_embd", sizes.n_embd);
  visit("n_layer", sizes.n_layer);
  visit("n_head", sizes.n_head);
  visit("n_inner", sizes.n_inner);
  visit("layer_norm_epsilon", sizes.layer_norm_epsilon);
  visit("activation_function", sizes.activation_function);
  visit("initializer_range", sizes.initializer_range);
  visit("tie_word_embeddings", sizes.tie_word_embeddings);
  visit("bos_token_id", sizes.bos_token_id);
  visit("eos_token_id", sizes.eos_token_id);
}

template <class Visitor, class Sizes>
void visit_bert(Visitor&& visit, Sizes& sizes) {
  visit("model_type", sizes.model_type);
  visit("vocab_size", sizes.vocab_size);
  visit("hidden_size", sizes.hidden_size);
  visit("num_hidden_layers", sizes.num_hidden_layers);
  visit("num_attention_heads", sizes.num_attention_heads);
  visit("intermediate_size", sizes.intermediate_size);
  visit("max_position_embeddings", sizes.max_position_embeddings);
  visit("type_vocab_size", sizes.type_vocab_size);
  visit("layer_norm_eps", sizes.layer_norm_eps);
  visit("hidden_act", sizes.hidden_act);
  visit("initializer_range", sizes.initializer_range);
  visit("tie_word_embeddings", sizes.tie_word_embeddings);
  visit("bos_token_id", sizes.bos_token_id);
  visit("eos_token_id", sizes.eos_token_id);
  visit("pad_token_id", sizes.pad_token_id);
}

template <class Visitor, class Sizes>
void visit_t5(Visitor&& visit, Sizes& sizes) {
  visit("model_type", sizes.model_type);
  visit("vocab_size", sizes.vocab_size);
  visit("d_model", sizes.d_model);
  visit("d_kv", sizes.d_kv);
  visit("d_ff", sizes.d_ff);
  visit("num_layers", sizes.num_layers);
  visit("num_decoder_layers", sizes.num_decoder_layers);
  visit("num_heads", sizes.num_heads);
  visit("relative_attention_num_buckets", sizes.relative_attention_num_buckets);
  visit("relative_attention_max_distance", sizes.relative_attention_max_distance);
  visit("dropout_rate", sizes.dropout_rate);
  visit("layer_norm_epsilon", sizes.layer_norm_epsilon);
  visit("feed_forward_proj", sizes.feed_forward_proj);
  visit("tie_word_embeddings", sizes.tie_word_embeddings);
  visit("scale_decoder_outputs", sizes.scale_decoder_outputs);
  visit("pad_token_id", sizes.pad_token_id);
  visit("eos_token_id", sizes.eos_token_id);
  visit("decoder_start_token_id", sizes.decoder_start_token_id);
}

}  // namespace smp::hf
