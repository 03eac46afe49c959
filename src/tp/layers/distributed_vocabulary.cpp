// tp/layers/distributed_vocabulary.cpp: see the header.
#include "smp/tp/distributed_vocabulary.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "base/check.h"
#include "smp/tp/batch_primitives.h"
#include "smp/tp/split_cross_entropy.h"
#include "tp/group/tensor_parallel.h"
#include "tp/slices/drawn_slice.h"

namespace smp::nn {
namespace {

constexpr const char* kVocabulary = "DistributedVocabulary";

void require_tokens(const at::Tensor& tokens, std::int64_t num_tokens) {
  SMP_REQUIRE(
      tokens.defined() && tokens.dim() >= 1 && tokens.scalar_type() == at::kLong, kVocabulary,
      ": tokens are ",
      tokens.defined() ? base::concat(tokens.scalar_type(), ' ', tokens.sizes()) : "undefined",
      "; expected [batch, ..] of whole numbers (torch::kLong)");
  if (tokens.is_meta() || tokens.numel() == 0) return;  // a plan is made, there are no values
  const auto wrong = tokens.masked_select((tokens < 0) | (tokens >= num_tokens));
  SMP_REQUIRE(wrong.numel() == 0, kVocabulary, ": token ", wrong[0].item<std::int64_t>(),
              " is none of the ", num_tokens, "; check num_tokens, and what made the tokens");
}

}  // namespace

DistributedVocabularyImpl::DistributedVocabularyImpl(std::int64_t tokens, std::int64_t width,
                                                     std::optional<double> deviation)
    : num_tokens(tokens) {
  const auto draw = [&](const at::Tensor& rows, std::int64_t) {
    rows.normal_(0, deviation.value_or(1));
  };
  if (deviation) {  // a table that is initialised twice, as in other implementations
    tp::draw_rows(
        {tokens, width}, [](const at::Tensor& rows, std::int64_t) { rows.normal_(0, 1); },
        [](const at::Tensor&, std::int64_t) {});
  }
  weight = register_drawn_slice("weight", {tokens, width}, 0, draw, /*unit=*/1);
}

/// Adds up rows of the table over the ranks. Exactly one rank adds a row to a sum of zeros, so
/// vectors are those of the table to the bit.
at::Tensor DistributedVocabularyImpl::forward(const at::Tensor& tokens) {
  require_tokens(tokens, num_tokens);
  const auto first = tp::TensorParallel::current().rank() * weight.size(0);
  const auto own = whole_batch_for_tp(tokens) - first;
  const auto elsewhere = (own < 0) | (own >= weight.size(0));
  const auto rows = at::embedding(weight, own.masked_fill(elsewhere, 0));
  return batch_of_sums_for_tp(rows.masked_fill(elsewhere.unsqueeze(-1), 0));
}

/// Returns the scores of the samples of all ranks for this rank's tokens: [N, .., V/T].
at::Tensor DistributedVocabularyImpl::own_scores(const at::Tensor& hidden, const char* what) const {
  SMP_REQUIRE(hidden.defined() && hidden.dim() >= 2 && hidden.size(-1) == weight.size(1),
              kVocabulary, ": ", what, " of ",
              hidden.defined() ? base::concat(hidden.sizes()) : "an undefined tensor",
              ", expected [batch, .., ", weight.size(1), "]; check the width of the table");
  return at::linear(whole_batch_for_tp(hidden), weight);
}

at::Tensor DistributedVocabularyImpl::scores(const at::Tensor& hidden) {
  const auto padded = batch_of_slices_for_tp(own_scores(hidden, "scores"), -1);
  return padded.size(-1) == num_tokens ? padded : padded.narrow(-1, 0, num_tokens);
}

at::Tensor DistributedVocabularyImpl::losses(const at::Tensor& hidden, const at::Tensor& labels) {
  const auto split = own_scores(hidden, "losses");
  SMP_REQUIRE(labels.defined() && labels.sizes() == hidden.sizes().slice(0, hidden.dim() - 1),
              kVocabulary, ": losses of ", hidden.sizes(), " with labels ",
              labels.defined() ? base::concat(labels.sizes()) : "undefined",
              "; expected a label for each row");
  return split_cross_entropy_for_tp(split, whole_batch_for_tp(labels),
                                    /*ignore_index=*/-100, num_tokens);
}

}  // namespace smp::nn
