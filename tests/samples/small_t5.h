// A T5 of a few thousand parameters, whose sizes all differ.
#pragma once

#include "t5/t5.h"

namespace t5 {

/// Without dropout; of version 1.0.
inline T5Config small_config() {
  T5Config config;
  config.vocab_size = 23;
  config.d_model = 8;
  config.d_kv = 5;
  config.d_ff = 12;
  config.num_layers = config.num_decoder_layers = config.num_heads = 2;
  config.relative_attention_num_buckets = 8;
  config.relative_attention_max_distance = 12;
  config.dropout_rate = 0;
  return config;
}

}  // namespace t5
