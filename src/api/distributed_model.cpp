// api/distributed_model.cpp: what concerns whole models.
#include "smp/distributed_model.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>
#include <unordered_set>
#include <utility>

#include "api/exchange.h"
#include "api/model_placement.h"
#include "api/model_state.h"
#include "api/planning.h"
#include "api/runtime.h"
#include "api/show_plans.h"
#include "base/check.h"
#include "base/random.h"
#include "server/executor.h"

namespace smp {
namespace {

/// Each tensor once, under its first name.
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

struct DistributedModelBase::State {
  State(Runtime& of, std::shared_ptr<torch::nn::Module> base)
      : runtime(of), module(std::move(base)) {}

  Runtime& runtime;
  std::shared_ptr<torch::nn::Module> module;
  std::vector<partitioning::Pin> pins;
  std::optional<PartitionPlan> plan;
  std::string simulation;
  double optimizer_ratio = 2;
  ModelDescription description;
  std::optional<ModelPlacement> placement;
  std::vector<std::function<void()>> on_placed;

  std::vector<partitioning::Pin> all_pins() const;
  bool owns(const at::Tensor& tensor) const {
    return !placement || placement->is_on(runtime.pp_rank(), tensor);
  }
};

DistributedModelBase::DistributedModelBase(std::shared_ptr<torch::nn::Module> module) {
  auto& runtime = Runtime::current();
  SMP_REQUIRE(module != nullptr, "smp::DistributedModel of an empty holder; build the model first");
  for (const auto* other : runtime.models()) {
    SMP_REQUIRE(other->state_->module != module, "this ", module->name(),
                " is wrapped in an smp::DistributedModel already; use that one");
  }
  state_ = std::make_unique<State>(runtime, std::move(module));
  runtime.models().push_back(this);
}

DistributedModelBase::~DistributedModelBase() {
  std::erase(state_->runtime.models(), this);
  state_->runtime.server().modules().detach_model(state_->description.routed);
}

torch::nn::Module& DistributedModelBase::base_module() const noexcept { return *state_->module; }

// ---- placement --------------------------------------------------------------------------------

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
  if (!state_->plan) place(state_->runtime, {this}, nullptr);
}

void DistributedModelBase::place(Runtime& runtime, const std::vector<DistributedModelBase*>& models,
                                 const StepPreview* preview) {
  std::vector<ModelToPlan> to_plan;
  for (auto* model : models) {
    model->state_->description = describe_model(*model->state_->module);
    to_plan.push_back(
        {&model->state_->description, model->state_->all_pins(), model->state_->optimizer_ratio});
  }
  auto plans = make_plans(runtime, to_plan, preview);
  if (const auto& request = runtime.plan_request()) show_plans_and_exit(*request, plans);
  for (std::size_t i = 0; i < models.size(); ++i) {
    auto& state = *models[i]->state_;
    state.plan = std::move(plans[i].plan);
    state.simulation = std::move(plans[i].simulation);
    state.placement.emplace(runtime, state.description, *state.plan);
    for (auto& callback : std::exchange(state.on_placed, {})) callback();
  }
}

const std::string& simulation_of(const DistributedModelBase& model) {
  return model.state_->simulation;
}

void set_optimizer_ratio(DistributedModelBase& model, double optimizer_ratio) {
  model.state_->optimizer_ratio = optimizer_ratio;
}

/// Scopes of smp::partition come first: set_partition is more specific.
std::vector<partitioning::Pin> DistributedModelBase::State::all_pins() const {
  std::vector<partitioning::Pin> all;
  for (std::size_t i = 0; i < description.routed.size(); ++i) {
    const auto* routed = description.routed[i];
    if (routed != nullptr && routed->smp_pin) {
      all.push_back(
          {description.tree.nodes[i].path, *routed->smp_pin, "a scope of smp::partition"});
    }
  }
  all.insert(all.end(), pins.begin(), pins.end());
  return all;
}

bool DistributedModelBase::owns(const at::Tensor& parameter) const {
  return state_->owns(parameter);
}

void prepare_models(Runtime& runtime, const StepPreview* preview) {
  std::vector<DistributedModelBase*> unplaced;
  std::copy_if(runtime.models().begin(), runtime.models().end(), std::back_inserter(unplaced),
               [](const auto* model) { return !model->partitioned(); });
  if (!unplaced.empty()) DistributedModelBase::place(runtime, unplaced, preview);
  std::uint64_t frozen = 0;
  for (auto* model : runtime.models()) {
    for (const auto& parameter : model->base_module().parameters()) {
      frozen = base::mix_key(frozen, parameter.requires_grad() ? 1u : 0u);
    }
  }
  runtime.server().set_frozen_hash(frozen);
}

// ---- tensors ----------------------------------------------------------------------------------

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

void DistributedModelBase::zero_grad(bool set_to_none) { state_->module->zero_grad(set_to_none); }

double DistributedModelBase::clip_grad_norm_(double max_norm) {
  at::NoGradGuard no_grad;
  auto& runtime = state_->runtime;
  SMP_REQUIRE(!runtime.in_step(),
              "clip_grad_norm_ inside a step; call it after the step, "
              "on every rank");
  double own = 0;
  for (const auto& parameter : local_parameters()) {
    const auto& gradient = parameter.grad();
    if (!gradient.defined()) continue;
    const double norm = gradient.norm(2, at::kDouble).item<double>();
    own += norm * norm;
  }
  const auto norms = gather_values(runtime.communicator(Group::kPp), own, "clip_grad_norm_");
  const double total = std::accumulate(norms.begin(), norms.end(), 0.0);
  const double norm = std::sqrt(total);
  const double scale = max_norm / (norm + 1e-6);
  if (scale >= 1) return norm;
  for (const auto& parameter : local_parameters()) {
    if (parameter.grad().defined()) parameter.mutable_grad().mul_(scale);
  }
  return norm;
}

// ---- inside a step ----------------------------------------------------------------------------

void DistributedModelBase::check_callable() const {
  SMP_REQUIRE(state_->runtime.engine().current_microbatch() >= 0,
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
  state_->runtime.engine().backward(tensors, gradients, retain_graph);
}

at::Tensor detail::guard_output(const at::Tensor& output) {
  return output.defined() ? server::guard_output(output) : output;
}

}  // namespace smp
