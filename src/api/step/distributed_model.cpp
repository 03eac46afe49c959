// api/step/distributed_model.cpp: what concerns whole models.
#include "smp/distributed_model.h"

#include <ATen/ATen.h>

#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "api/model/cast_model.h"
#include "api/model/model_state.h"
#include "api/model/shared_parts.h"
#include "api/replicas/replicas.h"
#include "api/step/distributed_model_state.h"
#include "api/step/wrapped_module.h"
#include "server/step/step_engine.h"
#include "smp/clip_grad.h"
#include "smp/program/trace_on_device.h"

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

}  // namespace

DistributedModelBase::DistributedModelBase(std::shared_ptr<torch::nn::Module> module) {
  const auto& session = SessionParts::current();
  SMP_REQUIRE(module != nullptr, "smp::DistributedModel of an empty holder; build the model first");
  for (const auto* other : session.state.models()) {
    SMP_REQUIRE(other->state_->module != module, "this ", module->name(),
                " is wrapped in an smp::DistributedModel already; use that one");
  }
  auto candidates = spread_marked_modules(session.rank, *module);
  cast_model(*module, session.rank.config());
  state_ = std::make_unique<State>(session, std::move(module));
  state_->candidates = std::move(candidates);
  state_->marks = ReadMarks(*state_->module);
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

const std::string& simulation_of(const DistributedModelBase& model) {
  return model.state_->simulation;
}

void trace_on_device(DistributedModelBase& model, bool on) {
  SMP_REQUIRE(!model.partitioned(),
              "smp::trace_on_device() after placement, when no trial run is left; call it before "
              "the first step");
  SessionState::current().set_traced_on_device(model, on);
}

void set_optimizer_ratio(DistributedModelBase& model, double optimizer_ratio) {
  model.state_->optimizer_ratio = optimizer_ratio;
}

void DistributedModelBase::require_placed() const {
  state_->placement->require_parameters_of(*state_->module,
                                           GlobalRank(state_->session().rank.topology().rank()));
}

bool DistributedModelBase::owns(const at::Tensor& parameter) const {
  return state_->owns(parameter);
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
  session.replicas.gradients().note_zeroed(state_->module->parameters());
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
  const auto& session = state_->session();
  session.rank.engine().backward(tensors, gradients, retain_graph);
  if (!session.rank.is_tracing()) session.state.note_backward();
}

}  // namespace smp
