// smp/text/generate.h: text from a language model, one token at a time.
//
// B rows, P tokens of the prompt, N new tokens, V tokens of the vocabulary.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>

#include "smp/detail/export.h"
#include "smp/nn/key_value_cache.h"
#include "smp/text/token_ids.h"

namespace smp {

/// How tokens are chosen, and when to stop. The names are those of transformers'
/// GenerationConfig, where it has one.
struct GenerateOptions {
  std::int64_t max_new_tokens = 20;
  /// 0: the token with the highest score (of equal ones the first). Else one is drawn from the
  /// softmax of the scores divided by it.
  double temperature = 0;
  std::int64_t top_k = 0;  ///< draw from this many highest scores only; 0: from all
  double top_p = 1;        ///< draw from the fewest tokens that have this probability together
  /// The numbers that are drawn depend on this, the row and the place in the text alone, not on
  /// ranks, microbatches or other rows.
  std::uint64_t seed = 0;
  TokenIds eos_token_id = {};     ///< each of them ends a row
  std::int64_t pad_token_id = 0;  ///< fills it up then
  /// Into how many parts the rows are dealt, which fill the pipeline; default:
  /// Config::microbatches.
  std::optional<int> microbatches = {};
};

/// Returns the scores [B, V] of what follows `tokens` [B, T], which stand at `place`: a call of the
/// model whose layers decode() (smp/nn/decoder_layer.h).
using Decode = std::function<at::Tensor(const at::Tensor& tokens, const nn::CachedTokens& place)>;

/// Goes on with each row of `prompt`, and returns the new tokens [B, N], int64: N is
/// max_new_tokens, or less if all rows ended before.
///
/// In a session all ranks of the pipeline call it, between steps; each new token is a step without
/// gradients, in which `decode` runs on pp_rank 0, each layer on its owner, and keeps its own keys
/// and values there until the end. All of these ranks get the result. Without a session it runs on
/// this process alone. Ranks of a TP_GROUP, which must call layers together, end together, after
/// max_new_tokens. Call model.eval() before if the model has dropout.
///
///     const auto text = smp::generate(prompt, [&](const auto& tokens, const auto& place) {
///       return model->decode(tokens, place);
///     }, {.max_new_tokens = 50, .eos_token_id = 2});
///
/// @param prompt   [B, P] integers, P at least 1; read on pp_rank 0
/// @param decode   the model's call
/// @param options  how tokens are chosen, and when to stop; alike on all ranks
/// @param present  [B, P], 0 where a row is padding, which must be on the left; undefined: none is
/// @throws UsageError  options out of range, no prompt, padding on the right; scores of a row from
///                     which a token is to be drawn are no numbers; or as decode().
SMP_API at::Tensor generate(const at::Tensor& prompt, const Decode& decode,
                            const GenerateOptions& options = {}, const at::Tensor& present = {});

/// Returns the next token [B] of each row from its scores [B, V], as generate() does: int64.
/// @param scores     of what follows the last token
/// @param options    how tokens are chosen
/// @param first_row  number of the first row, for drawing
/// @param place      number of the token among the new ones, for drawing
/// @throws UsageError  options out of range, or scores to draw from that are no numbers
SMP_API at::Tensor next_tokens(const at::Tensor& scores, const GenerateOptions& options,
                               std::int64_t first_row = 0, std::int64_t place = 0);

}  // namespace smp
