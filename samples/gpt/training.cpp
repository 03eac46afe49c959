// samples/gpt/training.cpp: see the header.
#include "training.h"

#include <algorithm>
#include <fstream>
#include <ios>
#include <stdexcept>
#include <string>

namespace gpt {
namespace {

constexpr const char* kModelFile = "model.safetensors";
constexpr const char* kLatest = "latest";  // names the folder of the last checkpoint
constexpr const char* kOptimizerFile = "optimizer.safetensors";

/// A job that ends in the midst of it leaves the old note.
void note_latest(const std::filesystem::path& folder, const std::string& name) {
  std::ofstream note;
  note.exceptions(std::ios::failbit | std::ios::badbit);
  note.open(folder / "latest.new");
  note << name << '\n';
  note.close();
  std::filesystem::rename(folder / "latest.new", folder / kLatest);
}

torch::optim::AdamW adam(const std::vector<Tensor>& parameters, const Recipe& recipe) {
  auto options = torch::optim::AdamWOptions(recipe.learning_rate);
  options.betas({0.9, 0.99}).weight_decay(0.01);
  return torch::optim::AdamW(parameters, options);
}

double mean_over_replicas(double own) {
  double sum = 0;
  for (const double one : smp::all_gather(own, smp::Group::kDp)) sum += one;
  return sum / smp::dp_size();
}

const Recipe& checked(const Recipe& recipe) {
  const int batches = smp::data_shard().count;
  const auto parts = static_cast<std::int64_t>(batches) * recipe.microbatches;
  if (recipe.rows % parts != 0) {
    throw std::invalid_argument(
        std::to_string(recipe.rows) + " rows a step cannot be dealt to " + std::to_string(batches) +
        " batches with " + std::to_string(recipe.microbatches) +
        " microbatches each; choose a multiple of " + std::to_string(parts));
  }
  return recipe;
}

}  // namespace

Reference train_in_one_process(const Recipe& recipe, const Text& text, std::int64_t steps,
                               torch::Device device) {
  torch::manual_seed(recipe.seed);
  Reference reference{{}, PlainGpt(recipe.model)};
  auto& net = reference.net;
  net->to(device, recipe.dtype);
  auto optimizer = adam(net->parameters(), recipe);
  for (std::int64_t step = 0; step < steps; ++step) {
    const auto [tokens, next] =
        text.batch(recipe.seed, step, 0, recipe.rows, recipe.model.length).to(device);
    optimizer.zero_grad();
    const auto loss = loss_of(net(tokens), next);
    loss.backward();
    torch::nn::utils::clip_grad_norm_(net->parameters(), kMaxGradientNorm);
    optimizer.step();
    reference.losses.push_back(loss.item<double>());
  }
  return reference;
}

Gpt Trainer::seeded(const Recipe& recipe) {
  torch::manual_seed(recipe.seed);
  Gpt net(recipe.model);
  net->to(smp::device(), recipe.dtype);
  return net;
}

Trainer::Trainer(const Recipe& recipe, const Text& text)
    : recipe_(checked(recipe)),
      text_(text),
      net_(seeded(recipe)),
      model_(net_),
      optimizer_(model_, adam(net_->parameters(), recipe)) {}

double Trainer::step() {
  auto run = smp::step([this](const Tensor& tokens, const Tensor& next) {
    const auto loss = model_->loss(tokens, next);
    model_.backward(loss);
    return loss;
  });
  const auto shard = smp::data_shard();
  const auto rows = recipe_.rows / shard.count;
  const auto [tokens, next] =
      text_.batch(recipe_.seed, steps_++, shard.index * rows, rows, recipe_.model.length)
          .to(smp::device());
  model_.train();
  optimizer_.zero_grad();
  const double loss = run(tokens, next).reduce_mean().item<double>();
  model_.clip_grad_norm_(kMaxGradientNorm);
  optimizer_.step();
  return mean_over_replicas(loss);
}

void Trainer::save(const std::filesystem::path& folder) {
  const auto name = "step-" + std::to_string(steps_);
  if (smp::rank() == 0) std::filesystem::create_directories(folder / name);
  smp::barrier();
  smp::save_safetensors(model_, folder / name / kModelFile);
  auto state = smp::optimizer_state_dict(model_, optimizer_);
  const auto counts = smp::all_gather(smp::step_count());  // of replicas
  const auto count = *std::max_element(counts.begin(), counts.end());
  if (smp::rank() == 0) {
    state.metadata["steps"] = std::to_string(steps_);
    state.metadata["step_count"] = std::to_string(count);
    smp::save_safetensors(state, folder / name / kOptimizerFile);
    note_latest(folder, name);
  }
  smp::barrier();
}

bool Trainer::resume(const std::filesystem::path& folder) {
  std::string name;
  if (smp::rank() == 0) std::ifstream(folder / kLatest) >> name;
  name = smp::broadcast(name);
  if (name.empty()) return false;
  smp::load_safetensors(model_, folder / name / kModelFile);
  smp::StateDict state;
  if (smp::pp_rank() == 0) state = smp::load_safetensors(folder / name / kOptimizerFile);
  smp::load_optimizer_state_dict(model_, optimizer_, state);
  const auto metadata = smp::broadcast(state.metadata);
  steps_ = std::stoll(metadata.at("steps"));
  smp::set_step_count(std::stoll(metadata.at("step_count")));
  return true;
}

/// All microbatches continue the same text, each with draws of its own; the first one's is kept.
/// Ranks that share layers run the same calls, so all replicas write, too.
std::string Trainer::generate(const std::string& prompt, std::int64_t bytes, double temperature) {
  const torch::NoGradGuard no_grad;
  model_.eval();
  auto score_next =
      smp::step([this](const Tensor& tokens) { return model_(tokens).select(1, -1); });
  const auto shown = std::min<std::int64_t>(std::ssize(prompt), recipe_.model.length);
  auto row = torch::empty({shown}, torch::kLong);
  std::copy_n(reinterpret_cast<const unsigned char*>(prompt.data()) + prompt.size() - shown, shown,
              row.data_ptr<std::int64_t>());
  auto rows = row.expand({recipe_.microbatches, shown});
  auto random =
      at::make_generator<at::CPUGeneratorImpl>(recipe_.seed + 1000 * smp::data_shard().index);
  for (std::int64_t i = 0; i < bytes; ++i) {
    const auto seen = std::min(rows.size(1), recipe_.model.length);
    const auto last = rows.narrow(1, rows.size(1) - seen, seen).to(smp::device());
    const auto scores = score_next(last).concat().to(torch::kCPU, torch::kDouble);
    const auto odds = torch::softmax(scores.narrow(1, 0, 256) / temperature, -1);
    rows = torch::cat({rows, torch::multinomial(odds, 1, /*replacement=*/false, random)}, 1);
  }
  const auto written = rows[0].narrow(0, shown, bytes).contiguous();
  const auto* const first = written.data_ptr<std::int64_t>();
  return smp::broadcast(std::string(first, first + bytes));
}

}  // namespace gpt
