// samples/llama/training.cpp: see the header. Saving and going on is in checkpoint.cpp.
#include "training.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace llama {
namespace {

namespace F = torch::nn::functional;

/// Scores of any dtype are compared with the targets in float32.
Tensor loss_of(const Tensor& scores, const Tensor& targets, bool sum = false) {
  const auto wide = scores.scalar_type() == torch::kDouble ? scores : scores.to(torch::kFloat);
  auto options = F::CrossEntropyFuncOptions().ignore_index(smp::data::kIgnoredTarget);
  if (sum) options.reduction(torch::kSum);
  return F::cross_entropy(wide.flatten(0, 1), targets.flatten(), options);
}

/// HLAT's: one decay for all parameters, norms included.
torch::optim::AdamW adam(const std::vector<Tensor>& parameters, const Recipe& recipe) {
  auto options = torch::optim::AdamWOptions(recipe.learning_rate);
  options.betas({0.9, 0.95}).eps(1e-8).weight_decay(recipe.weight_decay);
  return torch::optim::AdamW(parameters, options);
}

/// A model may be too big for a rank: each gives values to its own part only. What is spread over
/// ranks has to have values before.
models::Llama seeded(const Recipe& recipe) {
  torch::manual_seed(recipe.seed);
  const smp::tensor_parallelism spread(smp::tp_size() > 1);
  std::optional<smp::delay_param_initialization> delay;
  if (smp::tp_size() == 1) delay.emplace();
  models::Llama net(recipe.model);
  net->to(recipe.dtype);
  if (!smp::device().is_cpu()) net->to(smp::device());
  return net;
}

bool feeds_model() { return smp::pp_rank() == 0; }

const Recipe& checked(const Recipe& recipe, const Text& text) {
  const auto& tokenizer = text.tokenizer();
  if (recipe.model.vocab_size >= tokenizer.vocab_size()) return recipe;
  throw std::invalid_argument("the model knows " + std::to_string(recipe.model.vocab_size) +
                              " tokens, and the tokenizer (" + tokenizer.name() + ") makes " +
                              std::to_string(tokenizer.vocab_size()) +
                              "; set vocab_size in the file behind --config");
}

double sum_over_replicas(double own) {
  double sum = 0;
  for (const double one : smp::all_gather(own, smp::Group::kDp)) sum += one;
  return sum;
}

}  // namespace

smp::DecoderShape Recipe::shape() const {
  return {.vocab_size = model.vocab_size,
          .hidden_size = model.hidden_size,
          .intermediate_size = model.intermediate_size,
          .layers = model.num_hidden_layers,
          .heads = model.num_attention_heads,
          .kv_heads = model.num_key_value_heads,
          .head_dim = model.head_dim};
}

std::vector<StepNumbers> train_in_one_process(const Recipe& recipe, const Text& text,
                                              std::int64_t steps) {
  torch::manual_seed(recipe.seed);
  models::Llama net(recipe.model);
  net->to(recipe.dtype);
  auto optimizer = adam(net->parameters(), recipe);
  smp::LrSchedule schedule(optimizer, recipe.schedule);
  auto loader = text.training({.rows = recipe.rows, .context = recipe.context}, recipe.seed);
  std::vector<StepNumbers> results;
  for (std::int64_t step = 0; step < steps; ++step) {
    const auto batch = loader.next().value();
    optimizer.zero_grad();
    const auto loss = loss_of(net->scores(batch.tokens), batch.targets);
    loss.backward();
    StepNumbers numbers;
    numbers.loss = loss.item<double>();
    numbers.gradient_norm =
        torch::nn::utils::clip_grad_norm_(net->parameters(), recipe.max_gradient_norm);
    numbers.learning_rate = schedule.last_lr().front();
    optimizer.step();
    schedule.step();
    results.push_back(numbers);
  }
  return results;
}

Trainer::Trainer(const Recipe& recipe, const Text& text)
    : recipe_(checked(recipe, text)),
      text_(text),
      batch_(recipe.batch(smp::data_shard().count)),
      net_(seeded(recipe)),
      model_(net_),
      optimizer_(model_, adam(model_.parameters(), recipe)),
      schedule_(*optimizer_, recipe.schedule) {
  if (feeds_model()) {
    loader_.emplace(text.training(share(), recipe.seed));
    held_out_ = text.held_out(share(), recipe.held_out_batches);
  }
  held_out_batches_ = smp::broadcast(std::ssize(held_out_));
}

ShareOfText Trainer::share() const {
  const auto shard = smp::data_shard();
  return {.rows = batch_.rows_of_replica(),
          .context = recipe_.context,
          .replica = shard.index,
          .replicas = shard.count};
}

smp::StepOptions Trainer::step_options() const {
  return {.microbatches = static_cast<int>(batch_.accumulation)};
}

/// Other stages of the pipeline read nothing: arguments of a step count on the first.
smp::data::Batch Trainer::next_batch() {
  if (!loader_) return {};
  auto batch = loader_->next().value();
  batch.tokens = batch.tokens.to(smp::device());
  batch.targets = batch.targets.to(smp::device());
  return batch;
}

StepNumbers Trainer::step() {
  auto run = smp::step(
      [this](const Tensor& tokens, const Tensor& targets) {
        const auto loss = loss_of(model_->scores(tokens), targets);
        model_.backward(loss);
        return loss;
      },
      step_options());
  const auto batch = next_batch();
  model_.train();
  optimizer_.zero_grad();
  StepNumbers numbers;
  const double own = run(batch.tokens, batch.targets).reduce_mean().item<double>();
  numbers.gradient_norm = model_.clip_grad_norm_(recipe_.max_gradient_norm);
  numbers.learning_rate = schedule_.last_lr().front();
  optimizer_.step();
  schedule_.step();
  tokens_ += batch_.total() * recipe_.context;
  numbers.loss = sum_over_replicas(own) / smp::dp_size();
  numbers.parameter_norm = smp::parameter_norm(model_);
  numbers.usual_norm = spikes_.level();
  numbers.spike = spikes_.observe(numbers.gradient_norm);
  return numbers;
}

std::optional<double> Trainer::held_out_loss() {
  if (held_out_batches_ == 0) return std::nullopt;
  const torch::NoGradGuard no_grad;
  const auto count = smp::step_count();
  model_.eval();
  auto run = smp::step(
      [this](const Tensor& tokens, const Tensor& targets) {
        const auto sum = loss_of(model_->scores(tokens), targets, /*sum=*/true);
        const auto counted = (targets != smp::data::kIgnoredTarget).sum();
        return torch::stack({sum.to(torch::kDouble), counted.to(torch::kDouble)});
      },
      step_options());
  Tensor sums = torch::zeros({2}, torch::kDouble);
  for (std::int64_t i = 0; i < held_out_batches_; ++i) {
    const auto batch = feeds_model() ? held_out_[static_cast<std::size_t>(i)] : smp::data::Batch();
    const auto device = smp::device();
    const auto tokens = batch.tokens.defined() ? batch.tokens.to(device) : Tensor();
    const auto targets = batch.targets.defined() ? batch.targets.to(device) : Tensor();
    sums += run(tokens, targets).reduce_sum().to(torch::kCPU);
  }
  smp::set_step_count(count);  // random numbers of later steps are as without
  return sum_over_replicas(sums[0].item<double>()) / sum_over_replicas(sums[1].item<double>());
}

/// Layers that are spread over ranks have no decode(), which smp::generate wants: each token is
/// scored with all before it.
std::string Trainer::continue_text(const std::string& prompt, std::int64_t tokens) {
  const torch::NoGradGuard no_grad;
  const auto count = smp::step_count();
  model_.eval();
  auto score_next =
      smp::step([this](const Tensor& seen) { return model_->scores(seen).select(1, -1); },
                {.microbatches = 1});
  std::vector<std::int32_t> row;
  const auto& tokenizer = text_.tokenizer();
  tokenizer.encode(prompt, row);
  for (std::int64_t i = 0; i < tokens; ++i) {
    const auto seen = std::min<std::int64_t>(std::ssize(row), recipe_.context);
    const auto last = torch::tensor(std::vector<std::int32_t>(row.end() - seen, row.end()))
                          .to(smp::device(), torch::kLong);
    const auto scores = score_next(last.unsqueeze(0)).concat();
    const auto next = scores.narrow(1, 0, tokenizer.vocab_size()).argmax(1).item<std::int64_t>();
    row.push_back(static_cast<std::int32_t>(smp::broadcast(next)));
    if (row.back() == tokenizer.end_of_document()) break;
  }
  smp::set_step_count(count);
  return tokenizer.decode(row);
}

}  // namespace llama
