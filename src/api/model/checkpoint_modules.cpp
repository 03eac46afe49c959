// api/model/checkpoint_modules.cpp: see the header.
#include "api/model/checkpoint_modules.h"

#include <torch/nn/module.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <string>
#include <utility>

#include "api/rank/rank.h"
#include "base/check.h"
#include "base/log.h"
#include "base/memory/machine_memory.h"
#include "base/text/edit_distance.h"
#include "base/text/excerpt.h"
#include "module/grouped_calls.h"
#include "server/recompute/ahead.h"
#include "server/recompute/offload.h"
#include "server/recompute/recomputed_calls.h"
#include "smp/distributed_model.h"
#include "smp/recompute/activation_checkpointing.h"

namespace smp {
namespace {

bool can_be_repeated(const RoutedBase* module) {
  return module != nullptr && module->smp_cannot_cross().empty();
}

/// True if the forward of a module writes what calls that run again would write twice. Buffers are
/// watched when they are written.
bool writes_members(const PartitionPlan::Row& row) {
  const bool of_a_name = row.state_what.rfind("writes '", 0) == 0;
  return (row.state == "shared" || row.state == "ordered") && !of_a_name;
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

void set_activation_checkpointing(DistributedModelBase& model, const std::string& module_path,
                                  const CheckpointOptions& options) {
  if (module_path.empty()) return set_activation_checkpointing(model.base_module(), options);
  const auto modules = model.base_module().named_modules("", /*include_self=*/false);
  const auto* const module = modules.find(module_path);
  SMP_REQUIRE(module != nullptr, "smp::set_activation_checkpointing: the model has no module \"",
              base::excerpt(module_path), "\"", base::did_you_mean(module_path, modules.keys()));
  set_activation_checkpointing(**module, options);
}

void checkpoint_planned(const ModelDescription& model, const PartitionPlan& plan) {
  for (std::size_t i = 0; i < plan.rows().size(); ++i) {
    auto* const routed = model.routed.at(i);
    if (!plan.rows()[i].recomputed || routed == nullptr || server::recomputes(*routed)) continue;
    server::recompute_calls_of(
        *routed, {.keep = plan.rows()[i].keeps_products ? kProducts : KeepPolicy::kNothing});
  }
}

void hold_what_keeps_state(const Rank& rank, const ModelDescription& model,
                           const PartitionPlan& plan) {
  for (std::size_t i = 0; i < plan.rows().size(); ++i) {
    const auto& row = plan.rows()[i];
    if (!writes_members(row)) continue;
    for (int above = static_cast<int>(i); above >= 0; above = model.tree.nodes[above].parent) {
      auto* const routed = model.routed.at(static_cast<std::size_t>(above));
      if (routed == nullptr || !server::recomputes(*routed)) continue;
      routed->smp_wrapper.reset();
      if (rank.topology().rank() != 0) continue;
      const auto& marked = plan.rows()[static_cast<std::size_t>(above)].path;
      base::log(base::LogLevel::kWarning, "module '", marked.empty() ? "<root>" : marked, "' (",
                ModuleTypes::name_of(routed->smp_module()),
                ") is marked to be computed again, but the forward of '",
                row.path.empty() ? "<root>" : row.path, "' ", row.state_what,
                ": a second run would write that twice, so its activations are held; mark modules "
                "that keep nothing, or declare smp::private_state_v (smp/state.h) if it does not "
                "matter");
    }
  }
}

namespace {

/// Returns for each module whether it is one of the marked ones that `counts` takes.
std::vector<bool> marked_modules(const ModelDescription& model,
                                 bool (*counts)(const RoutedBase&) noexcept) {
  std::vector<bool> marked(model.routed.size(), false);
  for (std::size_t i = 0; i < model.routed.size(); ++i) {
    const auto* const routed = model.routed[i];
    if (routed == nullptr || !counts(*routed)) continue;
    const auto* const groups = dynamic_cast<const module::GroupedCalls*>(routed->smp_wrapper.get());
    // Groups of some modules count as each of them alone, which keeps a little more.
    marked[i] = marked[i] || groups == nullptr || groups->size() == 0;
    if (groups == nullptr) continue;
    for (const int child : model.tree.nodes[i].children) marked[child] = true;
  }
  return marked;
}

}  // namespace

simulate::RecomputedModules recomputed_modules(const ModelDescription& model) {
  const auto marked = marked_modules(model, &server::recomputes);
  const auto with_products = marked_modules(model, &server::keeps_products);
  simulate::RecomputedModules modules;
  for (std::size_t i = 0; i < marked.size(); ++i) {
    if (marked[i]) modules.push_back({static_cast<int>(i), with_products[i]});
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

namespace {

/// Host memory that offloading may take, and the least that is worth a trip.
constexpr std::int64_t kShareOfMachine = 2;
constexpr std::int64_t kLeastBytes = std::int64_t{16} << 10;

void offload_from(c10::Device device, const Rank& rank) {
  const int horizon = rank.config().activation_loading_horizon;
  const auto current = server::Offload::current();
  // Ranks of one process have one.
  if (current != nullptr && current->device() == device && current->options().horizon == horizon)
    return;
  const auto machine = base::machine_memory();
  const auto ranks = std::max(1, rank.topology().local_size());
  server::Offload::Options options;
  options.horizon = horizon;
  options.pool_bytes =
      machine > 0 ? machine / kShareOfMachine / ranks : std::numeric_limits<std::int64_t>::max();
  options.least_bytes = kLeastBytes;
  server::Offload::set_current(
      std::make_shared<server::Offload>(options, server::make_copy_streams(device)));
}

}  // namespace

void set_up_recompute_ahead(const Rank& rank, const std::vector<const PartitionPlan*>& plans) {
  server::RecomputeAhead::Credit credit;
  credit.one_call = rank.config().stage_memory.empty();
  std::int64_t limit = 0, used = 0;
  for (const auto* plan : plans) {
    const auto stages = plan->summary() ? plan->summary()->stages : std::vector<StageSummary>();
    const auto own = static_cast<std::size_t>(rank.pp_rank().value());
    if (own >= stages.size()) continue;
    const auto& stage = stages[own];
    limit = std::max(limit, stage.memory_limit);
    used += stage.most_memory();
  }
  if (limit > 0) credit = {.one_call = false, .bytes = std::max<std::int64_t>(0, limit - used)};
  server::RecomputeAhead::of(rank.topology().rank())->set_credit(credit);
}

void set_up_offload(const Rank& rank) {
  if (!rank.config().offload_activations) return server::Offload::set_current(nullptr);
  const auto device = rank.parts().device;
  if (!device.is_cpu()) return offload_from(device, rank);
  static bool said = false;
  if (rank.topology().rank() != 0 || std::exchange(said, true)) return;
  base::log(base::LogLevel::kWarning,
            "offload_activations has no effect on CPUs, where activations are in the host's "
            "memory already; checkpoint_modules or activation_checkpointing = auto spare memory");
}

}  // namespace smp
