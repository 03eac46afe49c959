// api/step/distributed_model.cpp: what concerns whole models.
#include "smp/distributed_model.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "api/model/candidate_table.h"
#include "api/model/cast_model.h"
#include "api/model/checkpoint_modules.h"
#include "api/model/initial_values.h"
#include "api/model/keep_whole.h"
#include "api/model/model_pins.h"
#include "api/model/model_placement.h"
#include "api/model/model_state.h"
#include "api/model/shared_parts.h"
#include "api/planning/planning.h"
#include "api/planning/show_plans.h"
#include "api/planning/tracing.h"
#include "api/rank/exchange.h"
#include "api/rank/public_call.h"
#include "api/rank/rank.h"
#include "api/rank/session_parts.h"
#include "api/replicas/replicas.h"
#include "api/state/session_state.h"
#include "base/check.h"
#include "base/log.h"
#include "dp/replica_values.h"
#include "server/backward/executor.h"
#include "server/graph/leaf_guards.h"
#include "server/modules/foreign_parameters.h"
#include "server/modules/weight_watch.h"
#include "smp/clip_grad.h"
#include "smp/join.h"
#include "smp/tp/replacement.h"
#include "tp/replacement/dropped_parameters.h"
#include "tp/slices/slice_sharing.h"

namespace smp {
namespace {

/// Returns each tensor once, under its first name.
DistributedModelBase::NamedTensors without_duplicates(
    const torch::OrderedDict<std::string, at::Tensor>& tensors) {
  DistributedModelBase::NamedTensors unique;
  std::unordered_set<const void*> seen;
  for (const auto& item : tensors) {
    if (item.value().defined() && seen.insert(item.value().unsafeGetTensorImpl()).second) {
      unique.emplace_back(item.key(), item.value());
    }
  }
  return unique;
}

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

/// Restores the modes of modules after a trial run. The body may switch them there, and its first
/// microbatch would find them switched.
class UntouchedSettings {
 public:
  explicit UntouchedSettings(const std::vector<DistributedModelBase*>& models) {
    for (auto* model : models) board_.attach(model->base_module());
    board_.begin_step();
  }
  ~UntouchedSettings() {
    auto now = board_.base();
    board_.note(now);
    board_.apply(board_.base());
  }
  UntouchedSettings(const UntouchedSettings&) = delete;
  UntouchedSettings& operator=(const UntouchedSettings&) = delete;

 private:
  server::SettingsBoard board_;
};

}  // namespace

struct DistributedModelBase::State {
  State(const SessionParts& of, std::shared_ptr<torch::nn::Module> base)
      : module(std::move(base)),
        session_(of),
        alive_(of.state.alive()),
        pp_rank_(of.rank.pp_rank()) {}

  bool session_lives() const noexcept { return *alive_; }
  const SessionParts& session() const {
    SMP_REQUIRE(session_lives(), "the smp session of this model (", module->name(),
                ") has ended; keep what smp::init returned alive (`auto session = ...`) until the "
                "last use of models, optimizers and steps");
    return session_;
  }
  std::shared_ptr<torch::nn::Module> module;
  std::vector<partitioning::Pin> pins;
  std::optional<PartitionPlan> plan;
  std::string simulation;
  double optimizer_ratio = 2;
  std::vector<ReplacementCandidate> candidates;
  ModelDescription description;
  std::optional<ModelPlacement> placement;
  server::LeafGuards guards;
  server::WeightWatch weights;
  std::vector<std::function<void()>> before_values;
  std::vector<std::function<void()>> on_placed;
  std::shared_ptr<int> no_sync_scopes = std::make_shared<int>(0);
  std::shared_ptr<CommHook> comm_hook;

  bool owns(const at::Tensor& tensor) const {
    return !placement || placement->is_on(pp_rank_, tensor);
  }
  /// Returns the stage that owns a tensor of the placed model; nothing if it is none of the
  /// model's.
  std::optional<PpRank> owner_of(const at::Tensor& tensor) const {
    const auto stages = static_cast<int>(ranks_of(session_.rank.topology(), Group::kPp).size());
    for (int stage = 0; stage < stages; ++stage) {
      if (placement->is_on(PpRank(stage), tensor)) return PpRank(stage);
    }
    return std::nullopt;
  }

 private:
  const SessionParts& session_;  // while the session lives
  std::shared_ptr<const bool> alive_;
  const PpRank pp_rank_;
};

/// Says of every marked module why it stays whole, if it does.
static std::vector<ReplacementCandidate> spread_marked_modules(const Rank& rank,
                                                               torch::nn::Module& model) {
  auto candidates = replace_marked_modules(model);
  for (const auto& [path, type, marked, obstacle, built] : candidates) {
    if (rank.topology().rank() != 0 || !marked || built) continue;
    const auto who = base::concat("tensor parallelism: module '", path, "' (", type, ") ");
    if (obstacle.empty()) {
      base::log(base::LogLevel::kInfo, who, "is spread over ", rank.topology().tp_size(), " ranks");
    } else {
      base::log(base::LogLevel::kWarning, who, "stays whole: ", obstacle);
    }
  }
  return candidates;
}

/// Where they are the whole, with one tensor-parallel rank, modules may share slices.
static void refuse_shared_slices(const Rank& rank, const torch::nn::Module& model) {
  const auto& topology = rank.topology();
  if (topology.tp_size() == 1) return;
  const auto shared = tp::find_shared_slice(model);
  SMP_REQUIRE(!shared, "rank ", topology.rank(), ": parameter '", shared->elsewhere,
              "' is the same tensor as '", shared->slice, "', of which each of ",
              topology.tp_size(),
              " tensor-parallel ranks holds a slice; a module that is not distributed would take "
              "the slice for the whole. Call the distributed module in both places "
              "(smp::nn::DistributedVocabulary reads and scores by one table), or give the other "
              "one a parameter of its own");
}

/// That another model had, in which a module with others came in their place.
static void refuse_dropped_parameters(const Rank& rank, const torch::nn::Module& model) {
  for (const auto& item : model.named_parameters()) {
    const auto dropped = tp::name_of_dropped(item.value());
    SMP_REQUIRE(dropped.empty(), "rank ", rank.topology().rank(), ": parameter '", item.key(),
                "' has lost its values: as '", dropped,
                "' of another model it was replaced by those of a distributed module; wrap both in "
                "one model, or do not mark what they share");
  }
}

DistributedModelBase::DistributedModelBase(std::shared_ptr<torch::nn::Module> module) {
  const auto& session = SessionParts::current();
  SMP_REQUIRE(module != nullptr, "smp::DistributedModel of an empty holder; build the model first");
  for (const auto* other : session.state.models()) {
    SMP_REQUIRE(other->state_->module != module, "this ", module->name(),
                " is wrapped in an smp::DistributedModel already; use that one");
  }
  auto candidates = spread_marked_modules(session.rank, *module);
  refuse_shared_slices(session.rank, *module);
  refuse_dropped_parameters(session.rank, *module);
  cast_model(*module, session.rank.config());
  state_ = std::make_unique<State>(session, std::move(module));
  state_->candidates = std::move(candidates);
  session.state.add_model(*this);
}

DistributedModelBase::~DistributedModelBase() {
  if (!state_->session_lives()) return;
  const auto& session = state_->session();
  session.state.remove_model(*this);
  for (auto* routed : state_->description.routed) {
    if (routed != nullptr && routed->smp_place.index == server::kWaitsForPlace) {
      routed->smp_place = {};
    }
  }
  session.replicas.forget_models();
  session.rank.server().settings().detach(*state_->module);
  auto& modules = session.rank.server().modules();
  modules.detach_model(state_->description.routed);
  modules.detach_body(*state_->module);
  for (const auto* other : session.state.models()) {
    if (!other->partitioned()) continue;
    const auto& [shared, kept] =
        common_modules(state_->description, other->state_->description, *other->state_->plan);
    if (!shared.empty()) modules.attach_model(shared, kept);
  }
}

torch::nn::Module& DistributedModelBase::base_module() const noexcept { return *state_->module; }

// ---- placement ---------------------------------------------------------------------------------

void DistributedModelBase::set_partition(const std::string& module_path, int pp_rank) {
  SMP_REQUIRE(!state_->plan, "set_partition(\"", module_path, "\", ", pp_rank,
              ") after placement; call it before the first step");
  state_->pins.push_back({module_path, pp_rank, "set_partition"});
}

bool DistributedModelBase::partitioned() const noexcept { return state_->plan.has_value(); }

const PartitionPlan& DistributedModelBase::plan() const {
  SMP_REQUIRE(state_->plan.has_value(), "the model has no plan yet: run a step, or call place()");
  return *state_->plan;
}

void DistributedModelBase::on_placed(std::function<void()> callback) {
  if (state_->plan) {
    callback();
  } else {
    state_->on_placed.push_back(std::move(callback));
  }
}

void DistributedModelBase::place() {
  if (!state_->plan) place(state_->session(), {this}, nullptr, /*may_wait=*/false);
}

void DistributedModelBase::place(const SessionParts& session,
                                 const std::vector<DistributedModelBase*>& models,
                                 const StepPreview* preview, bool may_wait) {
  const PublicCall call("smp::step, or place()");
  auto& rank = session.rank;
  auto& replicas = session.replicas;
  std::vector<ModelToPlan> to_plan;
  std::vector<ModelDescription*> descriptions;
  for (auto* model : models) {
    model->state_->description = describe_model(*model->state_->module);
    replicas.shards().note_shares(model->state_->description);
    const auto& state = *model->state_;
    to_plan.push_back(
        {&state.description, all_pins(state.description, state.pins), state.optimizer_ratio});
    descriptions.push_back(&model->state_->description);
  }
  rank.reporting().report_once([&] {
    const ModuleTypes whole("keep_whole", rank.config().keep_whole);
    const ModuleTypes checkpointed("checkpoint_modules", rank.config().checkpoint_modules);
    std::vector<const torch::nn::Module*> all;
    for (const auto* model : session.state.models()) all.push_back(&model->base_module());
    for (const auto* types : {&whole, &checkpointed}) types->require_known(all);
    keep_whole(descriptions, whole);
    checkpoint_modules(descriptions, checkpointed);
    if (rank.config().checkpoint_attentions) checkpoint_attentions(descriptions);
    warn_of_offload(rank);
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

const std::string& simulation_of(const DistributedModelBase& model) {
  return model.state_->simulation;
}

void set_optimizer_ratio(DistributedModelBase& model, double optimizer_ratio) {
  model.state_->optimizer_ratio = optimizer_ratio;
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

void DistributedModelBase::require_placed() const {
  state_->placement->require_parameters_of(*state_->module,
                                           GlobalRank(state_->session().rank.topology().rank()));
}

bool DistributedModelBase::owns(const at::Tensor& parameter) const {
  return state_->owns(parameter);
}

void refuse_written_weights(const SessionParts& session, int microbatch) {
  const GlobalRank rank(session.rank.topology().rank());
  for (const auto* model : session.state.models())
    model->state_->weights.refuse_written(rank, microbatch);
}

/// A character for each of `models`, '\1' if the body uses it.
static std::string looked_at(Rank& rank, const std::vector<DistributedModelBase*>& models,
                             const StepPreview& preview) {
  std::vector<ModelDescription> descriptions;
  std::vector<const ModelDescription*> all;
  descriptions.reserve(models.size());
  for (const auto* model : models) {
    all.push_back(&descriptions.emplace_back(describe_model(model->base_module())));
  }
  const UntouchedSettings untouched(models);
  return used_models(rank, all, preview);
}

/// Of models that wait for a step which uses them, those that the coming one does: a character for
/// each. Once enough steps have not shown it, all count as used. All ranks that begin the step call
/// it.
static std::string used_by(const SessionParts& session, const ComingStep& step,
                           const std::vector<DistributedModelBase*>& waiting) {
  const bool looks = session.state.step_looks().take(*step.body, step.grad);
  std::string used(waiting.size(), !looks && step.together ? '\1' : '\0');
  if (!looks) return used;
  if (step.preview != nullptr) used = looked_at(session.rank, waiting, *step.preview);
  const auto& groups = session.rank.groups();
  const auto ranks = step.together ? groups.training_ranks() : groups.of(Group::kPp);
  for (const auto& other : gather_values(ranks, used, "models that a step uses")) {
    for (std::size_t i = 0; i < used.size(); ++i) used[i] |= other.at(i);
  }
  return used;
}

void prepare_models(const SessionParts& session, const ComingStep& step) {
  const auto& models = session.state.models();
  std::vector<DistributedModelBase*> unplaced;
  std::copy_if(models.begin(), models.end(), std::back_inserter(unplaced),
               [](const auto* model) { return !model->partitioned(); });
  for (const auto* model : models) {
    if (model->partitioned()) model->require_placed();
  }
  auto& looks = session.state.step_looks();
  const bool may_wait = !session.rank.config().skip_tracing && !session.rank.parts().plan_request;
  const bool first = !looks.any() && unplaced.size() == models.size();
  if (may_wait && !unplaced.empty() && first) static_cast<void>(looks.take(*step.body, step.grad));
  if (may_wait && !unplaced.empty() && !first) {
    const auto used = used_by(session, step, unplaced);
    for (auto i = std::ssize(unplaced) - 1; i >= 0; --i) {
      if (used[i] != '\0' || !unplaced[i]->wait_for_place()) continue;
      unplaced.erase(unplaced.begin() + i);
    }
  }
  // What shares modules with another follows that one's placement.
  while (!unplaced.empty()) {
    DistributedModelBase::place(session, take_independent(unplaced), step.preview,
                                may_wait && first);
  }
  session.state.begin_step();
  for (const auto* model : models) model->state_->weights.begin_step();
}

/// Those of `buffers` that have values in all replicas. A copy of one that its owner changes has
/// none any more, once nobody has used it.
static std::vector<at::Tensor> held_by_all(Rank& rank, const std::vector<at::Tensor>& buffers) {
  if (rank.topology().pp_size() == 1) return buffers;
  std::string here;
  for (const auto& buffer : buffers) here.push_back(server::is_foreign(buffer) ? '\0' : '\1');
  std::vector<at::Tensor> held;
  const auto all = gather_values(rank.groups().replicas(), here, "the buffers of all replicas");
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    const auto has = [i](const auto& replica) { return replica.at(i) != '\0'; };
    if (std::all_of(all.begin(), all.end(), has)) held.push_back(buffers[i]);
  }
  return held;
}

/// A slice is never a buffer.
void take_buffers_of_first(const SessionParts& session) {
  auto& rank = session.rank;
  const auto& replicas = session.replicas;
  const int first = replicas.join() == nullptr ? 0 : replicas.join()->first_active();
  for (const auto* model : session.state.models()) {
    const auto& state = *model->state_;
    if (!state.placement) continue;
    std::unordered_set<const void*> buffers;
    for (const auto& buffer : state.module->buffers()) buffers.insert(buffer.unsafeGetTensorImpl());
    auto held = state.placement->held_on(rank.pp_rank());
    std::erase_if(
        held, [&](const auto& tensor) { return buffers.count(tensor.unsafeGetTensorImpl()) == 0; });
    if (held.empty()) continue;
    held = held_by_all(rank, held);
    rank.server().copies().give(
        [&] { dp::take_values_of(first, rank.groups().replicas(), held, rank.bucket_bytes()); });
  }
}

NoSync DistributedModelBase::no_sync() {
  SMP_REQUIRE(!state_->session().rank.in_step(),
              "no_sync() in the body of a step; call it before the step, on every rank");
  return NoSync(state_->no_sync_scopes);
}

bool DistributedModelBase::syncs_gradients() const noexcept { return *state_->no_sync_scopes == 0; }

void DistributedModelBase::register_comm_hook(std::shared_ptr<CommHook> hook) {
  const auto& rank = state_->session().rank;
  SMP_REQUIRE(
      !rank.in_step(), "rank ", rank.topology().rank(),
      ": register_comm_hook() in the body of a step; call it before the step, on every rank");
  SMP_REQUIRE_AS(UnsupportedError, !hook || !rank.config().shard_optimizer_state, "rank ",
                 rank.topology().rank(),
                 ": communication hooks do not go together with shard_optimizer_state, which "
                 "brings each gradient to one replica only; switch one of them off");
  state_->comm_hook = std::move(hook);
}

const std::shared_ptr<CommHook>& DistributedModelBase::comm_hook() const noexcept {
  return state_->comm_hook;
}

// ---- tensors -----------------------------------------------------------------------------------

DistributedModelBase::NamedTensors DistributedModelBase::named_parameters() const {
  return without_duplicates(state_->module->named_parameters());
}

DistributedModelBase::NamedTensors DistributedModelBase::named_buffers() const {
  return without_duplicates(state_->module->named_buffers());
}

DistributedModelBase::NamedTensors DistributedModelBase::local_named_parameters() const {
  auto tensors = named_parameters();
  std::erase_if(tensors, [&](const auto& item) { return !owns(item.second); });
  return tensors;
}

DistributedModelBase::NamedTensors DistributedModelBase::local_named_buffers() const {
  auto tensors = named_buffers();
  std::erase_if(tensors, [&](const auto& item) { return !owns(item.second); });
  return tensors;
}

std::vector<at::Tensor> DistributedModelBase::parameters() const {
  std::vector<at::Tensor> tensors;
  for (auto& [name, tensor] : named_parameters()) tensors.push_back(tensor);
  return tensors;
}

std::vector<at::Tensor> DistributedModelBase::local_parameters() const {
  std::vector<at::Tensor> tensors;
  for (auto& [name, tensor] : local_named_parameters()) tensors.push_back(tensor);
  return tensors;
}

void DistributedModelBase::train(bool on) { state_->module->train(on); }
bool DistributedModelBase::is_training() const { return state_->module->is_training(); }

void DistributedModelBase::zero_grad(bool set_to_none) {
  const auto& session = state_->session();
  SMP_REQUIRE(!session.rank.in_step(),
              "model.zero_grad() was called inside a step, where other microbatches have added to "
              "the gradients already; call it before the step, on every rank");
  session.state.facts().note_zero_grad();
  session.replicas.gradients().forget_apart(state_->module->parameters());
  state_->module->zero_grad(set_to_none);
}

double DistributedModelBase::clip_grad_norm_(double max_norm) {
  static_cast<void>(state_->session());  // the session lives
  return smp::clip_grad_norm_(*this, max_norm);
}

// ---- inside a step -----------------------------------------------------------------------------

void DistributedModelBase::check_callable() const {
  SMP_REQUIRE(state_->session().rank.engine().current_microbatch() >= 0,
              "the model was called outside of a step; call it in the body of smp::step (for "
              "evaluation too, under torch::NoGradGuard)");
}

void DistributedModelBase::backward(const at::Tensor& loss, const at::Tensor& gradient,
                                    bool retain_graph) {
  backward(std::vector<at::Tensor>{loss},
           gradient.defined() ? std::vector<at::Tensor>{gradient} : std::vector<at::Tensor>{},
           retain_graph);
}

void DistributedModelBase::backward(const std::vector<at::Tensor>& tensors,
                                    const std::vector<at::Tensor>& gradients, bool retain_graph) {
  state_->session().rank.engine().backward(tensors, gradients, retain_graph);
}

}  // namespace smp
