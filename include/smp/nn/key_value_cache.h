// smp/nn/key_value_cache.h: keys and values of tokens that a layer has seen, for generating text
// one token at a time.
//
// B rows, T tokens of a call, S of all calls up to it, K heads of keys and values, D elements of a
// head.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <map>
#include <utility>

#include "smp/detail/export.h"

namespace smp {
namespace nn {

/// Where the tokens of a call of decode() stand in their sequences. It crosses ranks with the call.
struct CachedTokens {
  std::int64_t cache = 0;  ///< which sequences: those of another number are forgotten
  std::int64_t row = 0;    ///< number of the first of the call's rows among all sequences
  std::int64_t begin = 0;  ///< tokens of each row that earlier calls had; 0 starts anew
  std::int64_t most = 0;   ///< tokens of each row after the last call
  bool last = false;       ///< whether the rows are forgotten after this call
  /// [B, S or more], 0 where a row is padding, of all tokens up to this call's; undefined: none is.
  torch::Tensor present = {};
};

/// What one attention layer has kept, on the rank that owns it. Memory: `most` tokens of each row,
/// from a sequence's first call to its last, or to the first one of another cache. Threads: the
/// rank's.
class SMP_API KeyValueCache {
 public:
  /// Adds the keys and values of a call's tokens, both [B, K, T, D], and returns those of all
  /// tokens up to them, both [B, K, S, D]: views of what is kept.
  /// @throws UsageError  other rows, or not the tokens that follow; gradients are on, which would
  ///                     keep every state of the cache.
  std::pair<torch::Tensor, torch::Tensor> extended(const CachedTokens& tokens,
                                                   const torch::Tensor& keys,
                                                   const torch::Tensor& values);
  /// Bytes that are kept now.
  std::int64_t bytes() const;

 private:
  struct Rows {
    torch::Tensor keys, values;  // [B, K, most, D]
    std::int64_t length = 0;
  };
  std::int64_t cache_ = 0;
  std::map<std::int64_t, Rows> rows_;  // by the number of the first
};

}  // namespace nn
}  // namespace smp
