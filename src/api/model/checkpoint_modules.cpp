// api/model/checkpoint_modules.cpp: see the header.
#include "api/model/checkpoint_modules.h"

#include <torch/nn/module.h>

#include <string>
#include <utility>

#include "api/rank/rank.h"
#include "base/check.h"
#include "base/log.h"
#include "module/grouped_calls.h"
#include "server/recompute/recomputed_calls.h"
#include "smp/recompute/activation_checkpointing.h"

namespace smp {
namespace {

bool can_be_repeated(const RoutedBase* module) {
  return module != nullptr && module->smp_cannot_cross().empty();
}

bool is_attention(const torch::nn::Module& module) {
  return ModuleTypes::name_of(module).find("Attention") != std::string::npos;
}

}  // namespace

void checkpoint_modules(const std::vector<ModelDescription*>& models, const ModuleTypes& types) {
  for (const auto* model : models) {
    for (auto* module : model->modules) {
      if (types.contain(*module)) set_activation_checkpointing(*module);
    }
  }
}

void checkpoint_attentions(const std::vector<ModelDescription*>& models) {
  bool any = false;
  for (const auto* model : models) {
    for (std::size_t i = 0; i < model->modules.size(); ++i) {
      auto* const routed = model->routed[i];
      if (!can_be_repeated(routed) || !is_attention(*model->modules[i])) continue;
      any = true;
      if (!server::recomputes(*routed)) set_activation_checkpointing(*model->modules[i]);
    }
  }
  SMP_REQUIRE(any,
              "checkpoint_attentions: no module whose calls can be repeated has a type with "
              "\"Attention\" in its name; name the types in checkpoint_modules");
}

void checkpoint_planned(const ModelDescription& model, const PartitionPlan& plan) {
  for (std::size_t i = 0; i < plan.rows().size(); ++i) {
    auto* const routed = model.routed.at(i);
    if (!plan.rows()[i].recomputed || routed == nullptr || server::recomputes(*routed)) continue;
    server::recompute_calls_of(*routed);
  }
}

std::vector<int> recomputed_modules(const ModelDescription& model) {
  std::vector<bool> marked(model.routed.size(), false);
  for (std::size_t i = 0; i < model.routed.size(); ++i) {
    const auto* const routed = model.routed[i];
    if (routed == nullptr || !server::recomputes(*routed)) continue;
    const auto* const groups = dynamic_cast<const module::GroupedCalls*>(routed->smp_wrapper.get());
    // Groups of some modules count as each of them alone, which keeps a little more.
    marked[i] = marked[i] || groups == nullptr || groups->size() == 0;
    if (groups == nullptr) continue;
    for (const int child : model.tree.nodes[i].children) marked[child] = true;
  }
  std::vector<int> modules;
  for (std::size_t i = 0; i < marked.size(); ++i) {
    if (marked[i]) modules.push_back(static_cast<int>(i));
  }
  return modules;
}

std::vector<int> recomputable_modules(const ModelDescription& model,
                                      const std::vector<simulate::StateChange>& state) {
  std::vector<bool> keeps(model.routed.size(), false);
  for (const auto& change : state) {
    for (int module = change.module; module >= 0; module = model.tree.nodes[module].parent) {
      keeps[module] = true;
    }
  }
  std::vector<int> modules;
  for (std::size_t i = 0; i < model.routed.size(); ++i) {
    const auto* const routed = model.routed[i];
    const bool free = can_be_repeated(routed) && routed->smp_wrapper == nullptr;
    if (free && !keeps[i]) modules.push_back(static_cast<int>(i));
  }
  return modules;
}

void warn_of_offload(const Rank& rank) {
  if (!rank.config().offload_activations) return;
  SMP_REQUIRE_AS(UnsupportedError, rank.config().device == "cpu", "rank ", rank.topology().rank(),
                 ": offload_activations of tensors on ", rank.config().device,
                 " has not been built yet; leave it out, and take checkpoint_modules or "
                 "activation_checkpointing = auto");
  static bool said = false;
  if (rank.topology().rank() != 0 || std::exchange(said, true)) return;
  base::log(base::LogLevel::kWarning,
            "offload_activations has no effect on CPUs, where activations are in the host's "
            "memory already; checkpoint_modules or activation_checkpointing = auto spare memory");
}

}  // namespace smp
