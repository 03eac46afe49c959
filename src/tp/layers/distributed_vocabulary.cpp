// tp/layers/distributed_vocabulary.cpp: see the header.
#include "smp/tp/distributed_vocabulary.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "base/check.h"
#include "smp/tp/batch_primitives.h"
#include "smp/tp/chunked_cross_entropy.h"
#include "smp/tp/split_cross_entropy.h"
#include "tp/group/batch_of_one.h"
#include "tp/group/tensor_parallel.h"
#include "tp/slices/drawn_slice.h"

namespace smp::nn {
namespace {

constexpr const char* kVocabulary = "DistributedVocabulary";

void require_tokens(const at::Tensor& tokens, std::int64_t num_tokens) {
  SMP_REQUIRE(tokens.defined(), kVocabulary, ": tokens are undefined");
  const auto dtype = tokens.scalar_type();
  SMP_REQUIRE(dtype == at::kLong || dtype == at::kInt, kVocabulary, ": tokens are ", dtype, ' ',
              tokens.sizes(), "; expected torch::kLong or torch::kInt");
  if (tokens.is_meta() || tokens.numel() == 0) return;  // a plan is made, there are no values
  const auto wrong = tokens.masked_select((tokens < 0) | (tokens >= num_tokens));
  SMP_REQUIRE(wrong.numel() == 0, kVocabulary, ": token ", wrong[0].item().toLong(),
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
  return tp::of_batch(tokens, /*row_dims=*/0, [this](const at::Tensor& batch) {
    const auto first = tp::TensorParallel::current().rank() * weight.size(0);
    const auto own = whole_batch_for_tp(batch) - first;
    const auto elsewhere = (own < 0) | (own >= weight.size(0));
    const auto rows = at::embedding(weight, own.masked_fill(elsewhere, 0));
    return batch_of_sums_for_tp(rows.masked_fill(elsewhere.unsqueeze(-1), 0));
  });
}

void DistributedVocabularyImpl::require_hidden(const at::Tensor& hidden, const char* what) const {
  SMP_REQUIRE(hidden.defined() && hidden.dim() >= 1 && hidden.size(-1) == weight.size(1),
              kVocabulary, ": ", what, " of ",
              hidden.defined() ? base::concat(hidden.sizes()) : "an undefined tensor",
              ", expected [.., ", weight.size(1), "]; check the width of the table");
}

/// Returns the scores of the samples of all ranks for this rank's tokens: [N, .., V/T].
at::Tensor DistributedVocabularyImpl::own_scores(const at::Tensor& batch) const {
  return at::linear(whole_batch_for_tp(batch), weight);
}

at::Tensor DistributedVocabularyImpl::scores(const at::Tensor& hidden) {
  require_hidden(hidden, "scores");
  return tp::of_batch(hidden, /*row_dims=*/1, [this](const at::Tensor& batch) {
    const auto padded = batch_of_slices_for_tp(own_scores(batch), -1);
    return padded.size(-1) == num_tokens ? padded : padded.narrow(-1, 0, num_tokens);
  });
}

at::Tensor DistributedVocabularyImpl::losses(const at::Tensor& hidden, const at::Tensor& labels) {
  require_hidden(hidden, "losses");
  SMP_REQUIRE(labels.defined() && labels.sizes() == hidden.sizes().slice(0, hidden.dim() - 1),
              kVocabulary, ": losses of ", hidden.sizes(), " with labels ",
              labels.defined() ? base::concat(labels.sizes()) : "undefined",
              "; expected a label for each row");
  return tp::of_batch(hidden, /*row_dims=*/1, [&](const at::Tensor& batch) {
    const auto of_all = whole_batch_for_tp(batch);
    const auto labels_of_all = whole_batch_for_tp(labels.dim() == 0 ? labels.unsqueeze(0) : labels);
    ChunkedCrossEntropyOptions options;
    options.num_classes = num_tokens;
    // Few scores are kept for backward, many are made again.
    const auto scores = of_all.numel() / of_all.size(-1) * weight.size(0);
    if (scores > options.most_scores) {
      return chunked_cross_entropy_for_tp(of_all, weight, labels_of_all, options);
    }
    return split_cross_entropy_for_tp(at::linear(of_all, weight), labels_of_all,
                                      options.ignore_index, num_tokens);
  });
}

}  // namespace smp::nn
