// samples/t5/recipe.cpp: losses, optimizer, learning rate, and the one-process reference.
#include "recipe.h"

#include <algorithm>
#include <memory>
#include <string>

namespace t5 {
namespace {

constexpr double kLearningRate = 1e-3;
constexpr double kEmbeddingLearningRate = 1e-2;
constexpr double kFinalShare = 0.1;  // of the learning rate, in the last step
constexpr int64_t kWarmUpSteps = 10;

torch::optim::OptimizerParamGroup group(std::vector<Tensor> parameters, double learning_rate) {
  auto options = std::make_unique<torch::optim::AdamWOptions>(learning_rate);
  options->betas({0.9, 0.99}).weight_decay(0.0);
  return {std::move(parameters), std::move(options)};
}

/// One microbatch after the other, as a loop in plain LibTorch would.
StepResult accumulate_gradients(T5& net, const Batch& batch, int microbatches) {
  const auto inputs = batch.input_ids.tensor_split(microbatches);
  const auto labels = batch.labels.tensor_split(microbatches);
  StepResult result;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].size(0) == 0) continue;
    const double share =
        static_cast<double>(inputs[i].size(0)) / static_cast<double>(batch.input_ids.size(0));
    const auto [loss, byte_loss] = losses(net(inputs[i], labels[i]), labels[i]);
    (share * loss).backward();
    result.loss += share * loss.item<double>();
    result.byte_loss += share * byte_loss.item<double>();
  }
  return result;
}

}  // namespace

std::tuple<Tensor, Tensor> losses(const Tensor& logits, const Tensor& labels) {
  using Vocabulary = ByteVocabulary;
  const Tensor flat = labels.flatten();
  const Tensor nats = torch::nn::functional::cross_entropy(
      logits.flatten(0, 1), flat,
      torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kNone));
  const Tensor is_byte = (flat >= Vocabulary::kFirstByte) & (flat < Vocabulary::kFirstSentinel);
  return {nats.mean(), nats.detach().masked_select(is_byte).mean()};
}

torch::optim::AdamW make_optimizer(const T5& net) {
  std::vector<Tensor> table;
  std::vector<Tensor> rest;
  for (const auto& entry : net->named_parameters()) {
    (entry.key() == "shared.weight" ? table : rest).push_back(entry.value());
  }
  return torch::optim::AdamW(
      {group(std::move(table), kEmbeddingLearningRate), group(std::move(rest), kLearningRate)});
}

void set_learning_rates(std::vector<torch::optim::OptimizerParamGroup>& groups, int64_t step,
                        int64_t steps) {
  const double rise = std::min(1.0, static_cast<double>(step + 1) / kWarmUpSteps);
  const double fall = 1.0 - (1.0 - kFinalShare) * static_cast<double>(step) / steps;
  groups.at(0).options().set_lr(kEmbeddingLearningRate * rise * fall);
  groups.at(1).options().set_lr(kLearningRate * rise * fall);
}

std::vector<StepResult> train_in_one_process(const Options& options, const Corpus& corpus,
                                             int64_t steps) {
  torch::manual_seed(options.seed);
  T5 net(options.config);
  auto optimizer = make_optimizer(net);
  std::vector<StepResult> results;
  for (int64_t step = 0; step < steps; ++step) {
    set_learning_rates(optimizer.param_groups(), step, options.steps);
    optimizer.zero_grad();
    StepResult result = accumulate_gradients(net, corpus.batch(options.seed, step, options.rows),
                                             options.microbatches);
    result.gradient_norm = torch::nn::utils::clip_grad_norm_(net->parameters(), kMaxGradientNorm);
    optimizer.step();
    results.push_back(result);
  }
  return results;
}

}  // namespace t5
