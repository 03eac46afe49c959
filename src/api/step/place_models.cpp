// api/step/place_models.cpp: models get their plan, and every rank keeps what it owns.
#include <algorithm>
#include <cstddef>
#include <functional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "api/model/candidate_table.h"
#include "api/model/checkpoint_modules.h"
#include "api/model/initial_values.h"
#include "api/model/keep_whole.h"
#include "api/model/model_state.h"
#include "api/model/module_types.h"
#include "api/model/shared_parts.h"
#include "api/planning/planning.h"
#include "api/planning/show_plans.h"
#include "api/planning/tracing.h"
#include "api/rank/public_call.h"
#include "api/replicas/replicas.h"
#include "api/step/distributed_model_state.h"
#include "api/step/untouched_settings.h"

namespace smp {
namespace {

/// True if some module fills a cache. Microbatch 0 must fill it, as in one process, so the first
/// step runs one microbatch at a time.
bool fills_caches(const PartitionPlan& plan) {
  return std::any_of(plan.rows().begin(), plan.rows().end(),
                     [](const auto& row) { return row.state == "cache"; });
}

/// True if some module keeps state, which includes buffers and weights.
bool keeps_state(const PartitionPlan& plan) {
  return std::any_of(plan.rows().begin(), plan.rows().end(),
                     [](const auto& row) { return !row.state.empty() && row.state != "cache"; });
}

/// Returns the plans of the models that are placed.
std::vector<const PartitionPlan*> plans_of(const std::vector<DistributedModelBase*>& models) {
  std::vector<const PartitionPlan*> plans;
  for (const auto* model : models) {
    if (model->partitioned()) plans.push_back(&model->plan());
  }
  return plans;
}

}  // namespace

void DistributedModelBase::place() {
  if (!state_->plan) place(state_->session(), {this}, nullptr, /*may_wait=*/false);
}

void DistributedModelBase::place(const SessionParts& session,
                                 const std::vector<DistributedModelBase*>& models,
                                 const StepPreview* preview, bool may_wait) {
  const PublicCall call("smp::step, or place()");
  auto& rank = session.rank;
  auto& replicas = session.replicas;
  const bool beside_placed = !plans_of(session.state.models()).empty();
  std::vector<ModelToPlan> to_plan;
  std::vector<ModelDescription*> descriptions;
  for (auto* model : models) {
    model->state_->description = describe_model(*model->state_->module);
    model->state_->description.traced_on_device = session.state.is_traced_on_device(*model);
    replicas.shards().note_shares(model->state_->description);
    const auto& state = *model->state_;
    to_plan.push_back({&state.description, all_pins(state.description, state.pins),
                       state.optimizer_ratio, beside_placed});
    descriptions.push_back(&model->state_->description);
  }
  rank.reporting().report_once([&] {
    for (const auto* model : models) model->state_->marks.require_same(*model->state_->module);
    const ModuleTypes whole("keep_whole", rank.config().keep_whole);
    const ModuleTypes checkpointed("checkpoint_modules", rank.config().checkpoint_modules);
    std::vector<const torch::nn::Module*> all;
    for (const auto* model : session.state.models()) all.push_back(&model->base_module());
    for (const auto* types : {&whole, &checkpointed}) types->require_known(all);
    keep_whole(descriptions, whole);
    checkpoint_modules(descriptions, checkpointed);
    if (rank.config().checkpoint_attentions) checkpoint_attentions(descriptions);
    set_up_offload(rank);
  });
  auto plans = [&] {
    const UntouchedSettings untouched(models);
    return make_plans(rank, session.state.warnings(), to_plan, preview, may_wait);
  }();
  if (const auto& request = rank.parts().plan_request) {
    std::vector<std::string> candidates;
    for (const auto* model : models) {
      candidates.push_back(candidate_table(model->state_->candidates, rank.topology().tp_size()));
    }
    show_plans_and_exit(*request, plans, candidates);
  }
  bool tried = preview != nullptr;
  bool any = false;
  for (std::size_t i = 0; i < models.size(); ++i) {
    if (plans[i].used) {
      any = true;
      tried = tried && plans[i].state_known && !fills_caches(plans[i].plan);
      models[i]->carry_out(session, std::move(plans[i]));
    } else {
      static_cast<void>(models[i]->wait_for_place());
    }
  }
  if (!any) return;
  set_up_recompute_ahead(rank, plans_of(session.state.models()));
  replicas.forget_models();
  auto& kinds = session.state.step_kinds();
  kinds.forget();
  if (tried) kinds.add(StepKinds::kind_of(rank, *preview->body, preview->grad));
}

void DistributedModelBase::carry_out(const SessionParts& session, PlannedModel&& planned) {
  auto& rank = session.rank;
  auto& state = *state_;
  refuse_two_owners(session.state, *this, planned.plan);
  checkpoint_planned(state.description, planned.plan);
  hold_what_keeps_state(rank, state.description, planned.plan);
  if (const auto& summary = planned.plan.summary(); summary && summary->active_microbatches > 0) {
    rank.lower_active_microbatches(summary->active_microbatches);
  }
  state.plan = std::move(planned.plan);
  state.simulation = std::move(planned.simulation);
  const InitialValues values(rank, *state.module);
  try {
    state.placement.emplace(rank, state.description, *state.plan,
                            [&] { bring_values(session.state, *this); });
  } catch (...) {
    state.plan.reset();
    throw;
  }
  rank.server().copies().give([&] { values.take(state.placement->held_on(rank.pp_rank())); });
  rank.server().settings().attach(*state.module);
  const bool watched = planned.state_known && !keeps_state(*state.plan);
  for (const auto& [name, parameter] : local_named_parameters()) {
    state.guards.add(name, parameter);
    if (watched) state.weights.add(name, parameter);
  }
  for (auto& callback : std::exchange(state.on_placed, {})) callback();
}

/// A call in a step that no trial run has shown is refused: other ranks would not hear of it. One
/// that is called by parts which are not routed would not be noticed, and is not cut anyway.
/// @return whether it waits
bool DistributedModelBase::wait_for_place() {
  auto& description = state_->description;
  description = describe_model(*state_->module);
  if (!description.tree.can_be_cut()) return false;
  for (std::size_t i = 0; i < description.routed.size(); ++i) {
    auto* const routed = description.routed[i];
    if (routed == nullptr || routed->smp_place.placed()) continue;
    routed->smp_place = {server::kWaitsForPlace, {}, description.tree.nodes[i].path};
  }
  return true;
}

/// Those that were loaded before, into the model and into models that have a part of it.
void DistributedModelBase::bring_values(const SessionState& session,
                                        const DistributedModelBase& placed) {
  for (auto* model : session.models()) {
    auto& waiting = model->state_->before_values;
    if (waiting.empty() || (model != &placed && !share_parts(*model, placed))) continue;
    while (!waiting.empty()) {  // one that fails stays, so that another try fails as well
      waiting.front()();
      waiting.erase(waiting.begin());
    }
  }
}

void before_values(DistributedModelBase& model, std::function<void()> bring) {
  if (model.partitioned()) return bring();
  model.state_->before_values.push_back(std::move(bring));
}

/// The parameters that two models share must be on one rank. The same on all ranks.
void DistributedModelBase::refuse_two_owners(const SessionState& state,
                                             const DistributedModelBase& model,
                                             const PartitionPlan& plan) {
  const auto& description = model.state_->description;
  for (const auto* other : state.models()) {
    if (!other->partitioned()) continue;
    std::unordered_map<const void*, PpRank> owners;
    for (std::size_t i = 0; i < description.modules.size(); ++i) {
      const PpRank owner(plan.rows()[i].pp_rank);
      for (const auto& item : description.modules[i]->named_parameters(/*recurse=*/false)) {
        const auto& tensor = item.value();
        if (!owners.emplace(tensor.unsafeGetTensorImpl(), owner).second) continue;
        const auto elsewhere = other->state_->owner_of(tensor);
        SMP_REQUIRE(!elsewhere || *elsewhere == owner, "parameter ", description.tree.nodes[i].path,
                    ".", item.key(), " belongs to two distributed models, one has it on stage ",
                    elsewhere->value(), ", the other's module needs it on stage ", owner.value(),
                    "; call set_partition(\"", description.tree.nodes[i].path, "\", ",
                    elsewhere->value(), "), or wrap both in one model");
      }
    }
  }
}

}  // namespace smp
