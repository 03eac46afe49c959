// api/model/checkpoint_modules.h: modules whose activations are computed again: those of settings,
// those of the program, and those of a plan.
#pragma once

#include <vector>

#include "api/model/describe_model.h"
#include "api/model/module_types.h"
#include "simulate/trace.h"
#include "smp/plan.h"

namespace smp {

class Rank;

/// Marks the modules of these types (the key checkpoint_modules).
/// @throws as smp::set_activation_checkpointing()
void checkpoint_modules(const std::vector<ModelDescription*>& models, const ModuleTypes& types);

/// Marks the outermost modules whose type has "Attention" in its name and whose calls can be
/// repeated (the key checkpoint_attentions). @throws UsageError  there is none in any of the models
void checkpoint_attentions(const std::vector<ModelDescription*>& models);

/// Marks the modules that a plan says are computed again, and none below them.
void checkpoint_planned(const ModelDescription& model, const PartitionPlan& plan);

/// Takes the marks away from modules whose forward writes members, or that are above such: another
/// run would write them twice. Rank 0 says so.
void hold_what_keeps_state(const Rank& rank, const ModelDescription& model,
                           const PartitionPlan& plan);

/// Returns the modules that are marked.
simulate::RecomputedModules recomputed_modules(const ModelDescription& model);

/// Returns the modules that may be marked: their calls can be repeated, and neither they nor those
/// below them keep state, ascending.
std::vector<int> recomputable_modules(const ModelDescription& model,
                                      const std::vector<simulate::StateChange>& state);

/// Sets what this rank may hold of calls that it computes again while it would idle: what its
/// memory leaves by these plans, which are all of the session; one call where nothing limits it.
void set_up_recompute_ahead(const Rank& rank, const std::vector<const PartitionPlan*>& plans);

/// Has what calls keep that are computed again leave the device meanwhile, if the settings say so.
/// On CPUs that has no effect, which is said once, on rank 0.
/// @throws UnsupportedError  the rank computes on another device
void set_up_offload(const Rank& rank);

}  // namespace smp
