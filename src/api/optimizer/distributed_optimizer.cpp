// api/optimizer/distributed_optimizer.cpp: shrinking parameter groups to what this rank owns, and
// keeping tensors of no model alike on all ranks.
#include "smp/distributed_optimizer.h"

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/Type.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <typeinfo>
#include <unordered_set>

#include "api/model/model_state.h"
#include "api/model/placed_parameters.h"
#include "api/optimizer/whole_tensors.h"
#include "api/rank/exchange.h"
#include "api/rank/runtime.h"
#include "base/check.h"
#include "base/log.h"
#include "tp/replacement/dropped_parameters.h"

namespace smp::detail {
namespace {

/// Returns how many tensors of a weight's size the optimizer keeps for each weight; 2 for an
/// optimizer that it does not know.
double states_per_weight(torch::optim::OptimizerOptions& options) {
  if (auto* sgd = dynamic_cast<torch::optim::SGDOptions*>(&options)) return sgd->momentum() > 0;
  if (auto* adam = dynamic_cast<torch::optim::AdamOptions*>(&options)) return 2 + adam->amsgrad();
  if (auto* adam = dynamic_cast<torch::optim::AdamWOptions*>(&options)) return 2 + adam->amsgrad();
  if (auto* prop = dynamic_cast<torch::optim::RMSpropOptions*>(&options)) {
    return 1 + (prop->momentum() > 0) + prop->centered();
  }
  return dynamic_cast<torch::optim::AdagradOptions*>(&options) != nullptr ? 1 : 2;
}

/// Drops all but the first occurrence of each parameter. @return how many were dropped
std::size_t remove_doubles(torch::optim::Optimizer& optimizer) {
  std::unordered_set<const void*> seen;
  std::size_t removed = 0;
  for (auto& group : optimizer.param_groups()) {
    removed += std::erase_if(group.params(), [&](const at::Tensor& parameter) {
      return !seen.insert(parameter.unsafeGetTensorImpl()).second;
    });
  }
  return removed;
}

/// Warns of tensors that an optimizer must not have, which most ranks give it alike, so one rank
/// prints it. Once all models are placed each rank has tensors of its own and no meeting is sure to
/// come; then each rank prints its own.
void warn(Runtime& runtime, std::string text) {
  const bool placed = std::all_of(runtime.models().begin(), runtime.models().end(),
                                  [](const auto* model) { return model->partitioned(); });
  if (placed) return base::log_text(base::LogLevel::kWarning, text);
  runtime.warnings().note(std::move(text));
}

/// Marks that the optimizer is stepped by its share, while it lives.
class Stepping {
 public:
  explicit Stepping(bool& flag) : flag_(flag) { flag_ = true; }
  ~Stepping() { flag_ = false; }
  Stepping(const Stepping&) = delete;
  Stepping& operator=(const Stepping&) = delete;

 private:
  bool& flag_;
};

/// Guards `chosen` if its class is exactly `Kind`; an object of a derived class would lose its own
/// part.
template <class Kind>
bool guard_as(std::unique_ptr<torch::optim::Optimizer>& chosen,
              std::shared_ptr<torch::optim::Optimizer>& result) {
  if (typeid(*chosen) != typeid(Kind)) return false;
  result = guard_moved(static_cast<Kind&>(*chosen));
  return true;
}

}  // namespace

std::shared_ptr<torch::optim::Optimizer> guard_chosen(
    std::unique_ptr<torch::optim::Optimizer> chosen) {
  using namespace torch::optim;
  auto* const runtime = Runtime::find_current();
  const auto who =
      runtime == nullptr ? std::string() : base::concat("rank ", runtime->topology().rank(), ": ");
  SMP_REQUIRE(chosen != nullptr, who,
              "smp::DistributedOptimizer of a pointer to no optimizer; make the optimizer first, "
              "and give each only once");
  std::shared_ptr<Optimizer> result;
  const bool known = guard_as<SGD>(chosen, result) || guard_as<Adam>(chosen, result) ||
                     guard_as<AdamW>(chosen, result) || guard_as<Adagrad>(chosen, result) ||
                     guard_as<RMSprop>(chosen, result);
  if (known) return result;
  SMP_REQUIRE_AS(UnsupportedError, runtime == nullptr || !runtime->optimizer_shards().active(), who,
                 "smp::DistributedOptimizer of a pointer to torch::optim::Optimizer, with "
                 "shard_optimizer_state: it points to a ",
                 c10::demangle(typeid(*chosen).name()),
                 ", whose own step() could not be refused; give a std::unique_ptr of that class, "
                 "or the optimizer by value");
  return chosen;
}

struct OptimizerShare::State {
  explicit State(std::shared_ptr<torch::optim::Optimizer> wrapped)
      : optimizer(std::move(wrapped)) {}

  void require_whole_step() const;
  void require_whole_state(const char* action) const;
  void follow_placement(Runtime& runtime);
  void slice(Runtime& runtime);
  void shard(Runtime& runtime, const PlacedParameters& models);
  template <class Others>
  void leave(torch::optim::OptimizerParamGroup& group, Others&& others);
  void find_holders(const d2d::Communicator& ranks, const d2d::Communicator& replicas_of_stage);
  void forget_what_others_step(int stage);
  void give_out(const d2d::Communicator& ranks);
  std::vector<at::Tensor> stepped(Runtime& runtime) const;

  std::shared_ptr<torch::optim::Optimizer> optimizer;
  std::vector<at::Tensor> strangers;  // of no model, in order of the groups; alike on all ranks
  std::vector<int> holders;           // stages that step them; -1: none yet
  std::vector<at::Tensor> sharded;    // parameters of the stage, of which replicas step shares
  bool stepping = false;              // in OptimizerShare::step()
  bool divided = false;               // ranks have different parts of the groups or their state
};

/// Refuses a step that OptimizerShare::step() has not made.
void OptimizerShare::State::require_whole_step() const {
  const auto* const runtime = Runtime::find_current();
  if (runtime == nullptr || stepping) return;
  SMP_REQUIRE(sharded.empty(), "rank ", runtime->topology().rank(),
              ": step() of the LibTorch optimizer in an smp::DistributedOptimizer. With "
              "shard_optimizer_state it would step the parameters whose state is on this rank, "
              "and no other replica would get their "
              "values; call step() of the smp::DistributedOptimizer itself, on every rank");
}

void OptimizerShare::State::require_whole_state(const char* action) const {
  const auto* const runtime = Runtime::find_current();
  if (runtime == nullptr) return;
  SMP_REQUIRE(!divided, "rank ", runtime->topology().rank(), ": ", action,
              " of the LibTorch optimizer in an smp::DistributedOptimizer: this rank steps a "
              "part of the parameters, and each rank would write another part into the file, or "
              "take another one's state for its own; call smp::optimizer_state_dict() and "
              "smp::load_optimizer_state_dict() on every rank, and write the dict with "
              "smp::save_safetensors()");
}

/// Takes out of `group` whatever others step, together with its state, which some optimizers are
/// built with.
template <class Others>
void OptimizerShare::State::leave(torch::optim::OptimizerParamGroup& group, Others&& others) {
  std::erase_if(group.params(), [&](const at::Tensor& parameter) {
    if (!others(parameter)) return false;
    optimizer->state().erase(parameter.unsafeGetTensorImpl());
    return true;
  });
}

/// Slices the state of Adagrad, which is built with state of whole parameters, where marked modules
/// are sliced later.
void OptimizerShare::State::slice(Runtime& runtime) {
  for (const auto* model : runtime.models()) {
    const WholeTensors whole(runtime, *model);
    if (!whole.any()) continue;
    for (const auto& parameter : model->parameters()) {
      const auto found = optimizer->state().find(parameter.unsafeGetTensorImpl());
      if (found == optimizer->state().end() || !whole.is_slice(parameter)) continue;
      auto* const state = dynamic_cast<torch::optim::AdagradParamState*>(found->second.get());
      if (state == nullptr || state->sum().sizes() == parameter.sizes()) continue;
      state->sum(whole.own_part(parameter, state->sum()));
    }
  }
}

/// Takes those of the stage's parameters out of the groups whose state other replicas keep.
void OptimizerShare::State::shard(Runtime& runtime, const PlacedParameters& models) {
  auto& shards = runtime.optimizer_shards();
  std::unordered_set<const void*> before;
  for (const auto& parameter : sharded) before.insert(parameter.unsafeGetTensorImpl());
  for (const auto& group : optimizer->param_groups()) {
    for (const auto& parameter : group.params()) {
      if (before.count(parameter.unsafeGetTensorImpl()) > 0 || !models.placed(parameter)) continue;
      sharded.push_back(parameter);
    }
  }
  shards.deal(sharded);
  for (auto& group : optimizer->param_groups()) {
    leave(group, [&](const at::Tensor& parameter) { return shards.is_elsewhere(parameter); });
  }
}

/// Adjusts the groups to the placement of a model; more models may be placed later.
void OptimizerShare::State::follow_placement(Runtime& runtime) {
  const PlacedParameters models(runtime);
  strangers.clear();
  for (auto& group : optimizer->param_groups())
    leave(group, [&](const at::Tensor& tensor) { return models.foreign(tensor); });
  slice(runtime);
  if (runtime.optimizer_shards().active()) shard(runtime, models);
  const auto& topology = runtime.topology();
  divided = topology.pp_size() > 1 || topology.tp_size() > 1 || !sharded.empty();
  for (auto& group : optimizer->param_groups()) {
    for (const auto& tensor : group.params()) {
      if (models.known(tensor)) continue;
      strangers.push_back(tensor);
      runtime.server().parameters().place(tensor);  // its sums are ordered like a parameter's
    }
  }
  holders.resize(strangers.size(), -1);
}

/// Refuses parameters that the model has dropped: the optimizer would step tensors that nobody
/// uses, and not those that are used.
static void refuse_dropped(const Runtime& runtime, torch::optim::Optimizer& optimizer) {
  for (const auto& group : optimizer.param_groups()) {
    for (const auto& parameter : group.params()) {
      const auto dropped = tp::name_of_dropped(parameter);
      SMP_REQUIRE(dropped.empty(), "rank ", runtime.topology().rank(),
                  ": smp::DistributedOptimizer of parameter '", dropped,
                  "', which the model has no more: a distributed module with parameters of its own "
                  "came in its place; make the optimizer of model.parameters() after the model was "
                  "wrapped");
    }
  }
}

static void require_outside_of_steps(const Runtime* runtime, const char* what) {
  SMP_REQUIRE(runtime == nullptr || !runtime->in_step(), "smp::DistributedOptimizer: ", what,
              " in the body of a step, while gradients of this and other microbatches are still to "
              "come; call it after the step, on every rank");
}

/// Refuses sharded steps after no_sync(), where an owner would step by the gradient of its own
/// samples. Steps under no_sync() are the same on all replicas, but which gradients they gave is
/// not, so replicas tell each other.
static void refuse_apart(Runtime& runtime, const std::vector<at::Tensor>& sharded) {
  const auto& gradients = runtime.replica_gradients();
  if (!gradients.left_apart(sharded)) return;
  const auto all =
      gather_values(runtime.replicas(), gradients.apart(sharded), "DistributedOptimizer::step");
  SMP_REQUIRE(
      std::find(all.begin(), all.end(), true) == all.end(),
      "smp::DistributedOptimizer: step() after a step under no_sync(): each parameter is "
      "stepped by one replica (shard_optimizer_state), and gradients of the others have not "
      "come to it; make the last step before optimizer.step() without no_sync()");
}

/// Finds out which rank has the gradient of each tensor of no model.
/// @throws UnsupportedError  on all stages: there are replicas, which average gradients of models
///                           only
void OptimizerShare::State::find_holders(const d2d::Communicator& ranks,
                                         const d2d::Communicator& replicas_of_stage) {
  std::vector<std::int64_t> own;
  for (std::size_t i = 0; i < strangers.size(); ++i) {
    if (strangers[i].grad().defined()) own.push_back(static_cast<std::int64_t>(i));
  }
  const int replicas = replicas_of_stage.size();
  if (replicas > 1) {  // one may have come another way than the others
    std::set<std::int64_t> anywhere;
    for (const auto& of_replica :
         gather_values(replicas_of_stage, own, "DistributedOptimizer::step")) {
      anywhere.insert(of_replica.begin(), of_replica.end());
    }
    own.assign(anywhere.begin(), anywhere.end());
  }
  const auto all = gather_values(ranks, own, "DistributedOptimizer::step");
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    for (const auto number : all[rank]) {
      const auto index = static_cast<std::size_t>(number);
      SMP_REQUIRE(index < strangers.size(),
                  "smp::DistributedOptimizer: the optimizers of two ranks have other tensors "
                  "of no model; make them alike on every rank");
      SMP_REQUIRE_AS(UnsupportedError, replicas == 1,
                     "smp::DistributedOptimizer: a tensor of no model, shape ",
                     strangers[index].sizes(), ", has a gradient on stage ", rank,
                     ", which is not averaged over the ", replicas,
                     " replicas; register it as a parameter of a module");
      auto& holder = holders[index];
      SMP_REQUIRE(holder == -1 || holder == static_cast<int>(rank),
                  "smp::DistributedOptimizer: a tensor of no model, shape ",
                  strangers[index].sizes(), ", has gradients on stages ", holder, " and ", rank,
                  ", so that no rank can step it; register it as a parameter of a module");
      holder = static_cast<int>(rank);
    }
  }
}

/// Drops the state of tensors that other ranks step. It is here if it was loaded or made before
/// anybody knew the holder, and would become outdated.
void OptimizerShare::State::forget_what_others_step(int stage) {
  for (std::size_t i = 0; i < strangers.size(); ++i) {
    if (holders[i] == -1 || holders[i] == stage) continue;
    optimizer->state().erase(strangers[i].unsafeGetTensorImpl());
  }
}

/// Sends the tensors that their holders have stepped to all other stages.
void OptimizerShare::State::give_out(const d2d::Communicator& ranks) {
  const at::NoGradGuard no_grad;
  for (int stage = 0; stage < ranks.size(); ++stage) {
    if (std::find(holders.begin(), holders.end(), stage) == holders.end()) continue;
    d2d::Payload payload;
    for (std::size_t i = 0; i < strangers.size() && stage == ranks.rank(); ++i) {
      if (holders[i] == stage) payload.tensors.push_back(strangers[i].detach().clone());
    }
    auto values = ranks.broadcast(std::move(payload), ranks.members()[stage]).tensors;
    std::size_t next = 0;
    for (std::size_t i = 0; i < strangers.size() && stage != ranks.rank(); ++i) {
      if (holders[i] == stage) strangers[i].detach().copy_(values.at(next++));
    }
  }
}

/// Returns those of `sharded` that the step may have changed somewhere. Frozen ones are left out,
/// unless they have a gradient from the time before, by which optimizers step them. All replicas
/// call it.
std::vector<at::Tensor> OptimizerShare::State::stepped(Runtime& runtime) const {
  const auto frozen = [](const at::Tensor& parameter) { return !parameter.requires_grad(); };
  if (std::none_of(sharded.begin(), sharded.end(), frozen)) return sharded;
  std::string left;  // a letter for each: '+' it is frozen, and has a gradient here
  for (const auto& parameter : sharded) {
    left += frozen(parameter) && parameter.grad().defined() ? '+' : '-';
  }
  const auto all = gather_values(runtime.replicas(), left, "frozen parameters with gradients");
  std::vector<at::Tensor> changed;
  for (std::size_t i = 0; i < sharded.size(); ++i) {
    const bool any = std::any_of(all.begin(), all.end(),
                                 [i](const auto& of_replica) { return of_replica.at(i) == '+'; });
    if (!frozen(sharded[i]) || any) changed.push_back(sharded[i]);
  }
  return changed;
}

OptimizerShare::OptimizerShare(std::shared_ptr<torch::optim::Optimizer> optimizer,
                               ModelList models) {
  SMP_REQUIRE_AS(
      UnsupportedError, dynamic_cast<torch::optim::LBFGS*>(optimizer.get()) == nullptr,
      "smp::DistributedOptimizer: LBFGS looks at all parameters at once, but each rank "
      "has its own only; use an optimizer that works element by element (SGD, Adam, ...)");
  auto& runtime = Runtime::current();
  refuse_dropped(runtime, *optimizer);
  const auto doubles = remove_doubles(*optimizer);
  if (doubles > 0) {
    warn(runtime,
         base::concat("smp::DistributedOptimizer: ", doubles,
                      " parameters were given more than once (shared modules, overlapping groups); "
                      "each is stepped once, in its first group"));
  }
  for (DistributedModelBase& model : models) {
    if (optimizer->param_groups().empty() || model.partitioned()) continue;
    set_optimizer_ratio(model, states_per_weight(optimizer->param_groups().front().options()));
  }
  runtime.facts().add_optimizer(optimizer);
  state_ = std::make_shared<State>(std::move(optimizer));
  set_guards();
  bool any_placed = runtime.models().empty();
  for (auto* model : runtime.models()) {
    any_placed |= model->partitioned();
    if (model->partitioned()) continue;
    model->on_placed([weak = std::weak_ptr<State>(state_), &runtime] {
      if (const auto alive = weak.lock()) alive->follow_placement(runtime);
    });
  }
  if (any_placed) state_->follow_placement(runtime);
}

/// Sets guards that hold the state weakly, because the optimizer may outlive its share.
void OptimizerShare::set_guards() {
  auto* const guards = dynamic_cast<OptimizerGuards*>(state_->optimizer.get());
  if (guards == nullptr) return;
  const std::weak_ptr<State> weak = state_;
  guards->before_step = [weak] {
    if (const auto alive = weak.lock()) alive->require_whole_step();
  };
  guards->before_archive = [weak](const char* action) {
    if (const auto alive = weak.lock()) alive->require_whole_state(action);
  };
}

OptimizerShare::~OptimizerShare() = default;
OptimizerShare::OptimizerShare(OptimizerShare&&) noexcept = default;
OptimizerShare& OptimizerShare::operator=(OptimizerShare&&) noexcept = default;

void OptimizerShare::step() {
  auto* runtime = Runtime::find_current();
  require_outside_of_steps(runtime, "step()");
  auto& state = *state_;
  if (runtime == nullptr) {
    state.optimizer->step();
    return;
  }
  const server::BetweenSteps recorded(runtime->server().recorder(), schedule::Phase::kOptimizer);
  refuse_apart(*runtime, state.sharded);
  const Stepping stepping(state.stepping);
  runtime->facts().note_optimizer_step();
  if (state.strangers.empty()) {
    state.optimizer->step();
  } else {
    const auto ranks = runtime->communicator(Group::kPp);
    state.find_holders(ranks, runtime->replicas());
    state.forget_what_others_step(ranks.rank());
    state.optimizer->step();
    state.give_out(ranks);
  }
  if (!state.sharded.empty()) runtime->optimizer_shards().take_values(state.stepped(*runtime));
}

void OptimizerShare::zero_grad(bool set_to_none) {
  auto* runtime = Runtime::find_current();
  require_outside_of_steps(runtime, "zero_grad()");
  state_->optimizer->zero_grad(set_to_none);
  if (runtime == nullptr) return;
  runtime->facts().note_zero_grad();
  auto& gradients = runtime->replica_gradients();
  for (auto& group : state_->optimizer->param_groups()) gradients.forget_apart(group.params());
  gradients.forget_apart(state_->sharded);
  for (const auto& parameter : state_->sharded) {  // those that others step have left the groups
    if (runtime->optimizer_shards().is_elsewhere(parameter)) {
      at::Tensor(parameter).mutable_grad().reset();
    }
  }
}

}  // namespace smp::detail
