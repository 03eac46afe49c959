// samples/llama/checkpoint.cpp: what a later job needs to go on, in any layout.
#include <smp/smp.h>

#include <algorithm>
#include <fstream>
#include <ios>
#include <string>

#include "training.h"

namespace llama {
namespace {

constexpr const char* kConfigFile = "config.json";
constexpr const char* kModelFile = "model.safetensors";
constexpr const char* kOptimizerFile = "optimizer.safetensors";
constexpr const char* kRecipeFile = "recipe.safetensors";
constexpr const char* kLatest = "latest";  // names the folder of the last checkpoint

void write(const std::filesystem::path& file, const std::string& text) {
  std::ofstream stream;
  stream.exceptions(std::ios::failbit | std::ios::badbit);
  stream.open(file);
  stream << text << '\n';
  stream.close();
}

/// A job that ends in the midst of it leaves the old note.
void note_latest(const std::filesystem::path& folder, const std::string& name) {
  write(folder / "latest.new", name);
  std::filesystem::rename(folder / "latest.new", folder / kLatest);
}

void add(smp::StateDict& all, const std::string& prefix, const smp::StateDict& part) {
  for (const auto& [name, tensor] : part) all.insert(prefix + name, tensor);
}

smp::StateDict part(const smp::StateDict& all, const std::string& prefix) {
  smp::StateDict part;
  for (const auto& [name, tensor] : all) {
    if (name.starts_with(prefix)) part.insert(name.substr(prefix.size()), tensor);
  }
  return part;
}

}  // namespace

void Trainer::save(const std::filesystem::path& folder) {
  const auto name = "step-" + std::to_string(steps());
  if (smp::rank() == 0) std::filesystem::create_directories(folder / name);
  smp::barrier();
  // The names of its parameters are the published ones; transformers wants to know who wrote them.
  smp::save_safetensors(model_, folder / name / kModelFile, {{"format", "pt"}});
  const auto state = smp::optimizer_state_dict(model_, optimizer_);
  const auto counts = smp::all_gather(smp::step_count());  // of replicas
  if (smp::rank() == 0) {
    write(folder / name / kConfigFile, recipe_.config_json);
    smp::save_safetensors(state, folder / name / kOptimizerFile);
    smp::StateDict recipe;
    add(recipe, "schedule.", schedule_.state_dict());
    add(recipe, "spikes.", spikes_.state_dict());
    recipe.metadata["step_count"] = std::to_string(*std::max_element(counts.begin(), counts.end()));
    recipe.metadata["tokens"] = std::to_string(tokens_);
    recipe.metadata["text"] = loader_.value().state();  // that of every replica
    smp::save_safetensors(recipe, folder / name / kRecipeFile);
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
  const auto recipe = smp::load_safetensors(folder / name / kRecipeFile);
  schedule_.load_state_dict(part(recipe, "schedule."));
  spikes_.load_state_dict(part(recipe, "spikes."));
  tokens_ = std::stoll(recipe.metadata.at("tokens"));
  smp::set_step_count(std::stoll(recipe.metadata.at("step_count")));
  if (loader_) loader_->load_state(recipe.metadata.at("text"));
  return true;
}

}  // namespace llama
