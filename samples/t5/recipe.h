// samples/t5/recipe.h: how the T5 is trained: losses, optimizer, learning rate.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <tuple>
#include <vector>

#include "corpus.h"
#include "options.h"
#include "t5.h"

namespace t5 {

/// Largest 2-norm of all gradients together.
inline constexpr double kMaxGradientNorm = 1.0;

/// Mean cross-entropy in nats, from scores [B, T, vocabulary] and labels [B, T]: that of all
/// labels, which is trained on, and that of the labels that stand for a byte of text.
std::tuple<Tensor, Tensor> losses(const Tensor& logits, const Tensor& labels);

/// AdamW in which the embedding table learns faster than the rest. T5's Adafactor does the same by
/// scaling each step with the size of the parameter: the table starts from deviation 1, the
/// projections from a tenth of it.
torch::optim::AdamW make_optimizer(const T5& net);

/// Sets the learning rates of `step` (from 0) of `steps`: a short rise, then a line down.
void set_learning_rates(std::vector<torch::optim::OptimizerParamGroup>& groups, int64_t step,
                        int64_t steps);

/// What a step computed.
struct StepResult {
  double loss = 0;           ///< of all labels
  double byte_loss = 0;      ///< of text bytes
  double gradient_norm = 0;  ///< before clipping
};

/// The first `steps` steps of the same training in plain LibTorch on this rank alone: the
/// reference for what the ranks compute together.
std::vector<StepResult> train_in_one_process(const Options& options, const Corpus& corpus,
                                             int64_t steps);

}  // namespace t5
