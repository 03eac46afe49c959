// api/optimizer/distributed_optimizer.cpp: shrinking parameter groups to what this rank owns.
#include "smp/distributed_optimizer.h"

#include <torch/optim/adagrad.h>
#include <torch/optim/lbfgs.h>

#include <ATen/ATen.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "api/model/model_state.h"
#include "api/model/placed_parameters.h"
#include "api/optimizer/optimizer_memory.h"
#include "api/optimizer/unowned_tensors.h"
#include "api/optimizer/whole_tensors.h"
#include "api/optimizer/wide_steps.h"
#include "api/rank/exchange.h"
#include "api/rank/public_call.h"
#include "api/rank/rank.h"
#include "api/rank/session_parts.h"
#include "api/replicas/replicas.h"
#include "api/state/session_state.h"
#include "base/check.h"
#include "base/log.h"
#include "tp/replacement/dropped_parameters.h"

namespace smp::detail {
namespace {

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

/// Ranks that give an optimizer what it must not have mostly do so alike. Once all models are
/// placed each has tensors of its own, and no meeting is sure to come.
void warn(SessionState& state, std::string text) {
  const bool placed = std::all_of(state.models().begin(), state.models().end(),
                                  [](const auto* model) { return model->partitioned(); });
  if (placed) return base::log_text(base::LogLevel::kWarning, text);
  state.warnings().note(std::move(text));
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

}  // namespace

struct OptimizerShare::State {
  /// State that was loaded before there is a place for it.
  using Load = std::function<void(torch::optim::Optimizer&)>;

  explicit State(std::shared_ptr<torch::optim::Optimizer> wrapped)
      : optimizer(std::move(wrapped)) {}

  void require_whole_step() const;
  void step(const SessionParts& session);
  void require_whole_state(const char* action);
  void follow_placement(const SessionParts& session);
  void follow_groups(const SessionParts& session);
  void put(const std::shared_ptr<const Load>& load);
  void put_all();
  std::vector<const void*> parameters() const;
  void slice(const SessionParts& session);
  void shard(Replicas& replicas, const PlacedParameters& models);
  void forget(const at::Tensor& parameter);
  template <class Others>
  void leave(torch::optim::OptimizerParamGroup& group, Others&& others);
  std::vector<at::Tensor> stepped(const Rank& rank) const;

  std::shared_ptr<torch::optim::Optimizer> optimizer;
  UnownedTensors unowned;
  std::vector<at::Tensor> sharded;  // parameters of the stage, of which replicas step shares
  std::optional<std::vector<const void*>> shared;  // parameters when the groups were shared out
  std::vector<std::shared_ptr<const Load>> loads;  // that wait for placement, in their order
  std::shared_ptr<const std::function<void()>> before_step;
  bool stepping = false;  // in OptimizerShare::step()
  bool divided = false;   // ranks have different parts of the groups or their state
};

/// Refuses a step that OptimizerShare::step() has not made.
void OptimizerShare::State::require_whole_step() const {
  const auto* const rank = Rank::find_current();
  if (rank == nullptr || stepping) return;
  SMP_REQUIRE(sharded.empty(), "rank ", rank->topology().rank(),
              ": step() of the LibTorch optimizer in an smp::DistributedOptimizer. With "
              "shard_optimizer_state it would step the parameters whose state is on this rank, "
              "and no other replica would get their "
              "values; call step() of the smp::DistributedOptimizer itself, on every rank");
  SMP_REQUIRE(!WideSteps::wanted(rank->config()), "rank ", rank->topology().rank(),
              ": step() of the LibTorch optimizer in an smp::DistributedOptimizer would step "
              "parameters of 16 bits as they are (",
              rank->config().master_weights ? "master_weights" : "stochastic_rounding",
              "); call step() of the smp::DistributedOptimizer itself, on every rank");
}

/// Before the optimizer is written or read as a whole, which one rank alone may do.
void OptimizerShare::State::require_whole_state(const char* action) {
  const auto* const rank = Rank::find_current();
  if (rank == nullptr) return;
  SMP_REQUIRE(!rank->config().master_weights, "rank ", rank->topology().rank(), ": ", action,
              " of the LibTorch optimizer in an smp::DistributedOptimizer would leave out the "
              "float32 values of parameters of 16 bits (master_weights); call "
              "smp::optimizer_state_dict() and smp::load_optimizer_state_dict() on every rank, and "
              "write the dict with smp::save_safetensors()");
  SMP_REQUIRE(!divided, "rank ", rank->topology().rank(), ": ", action,
              " of the LibTorch optimizer in an smp::DistributedOptimizer: this rank steps a "
              "part of the parameters, and each rank would write another part into the file, or "
              "take another one's state for its own; call smp::optimizer_state_dict() and "
              "smp::load_optimizer_state_dict() on every rank, and write the dict with "
              "smp::save_safetensors()");
  SMP_REQUIRE(loads.empty() || rank->topology().size() == 1, "rank ", rank->topology().rank(), ": ",
              action,
              " of the LibTorch optimizer in an smp::DistributedOptimizer, while what "
              "smp::load_optimizer_state_dict() has loaded waits for the model to be placed; call "
              "its place() first, on every rank");
  put_all();
}

void OptimizerShare::State::forget(const at::Tensor& parameter) {
  optimizer->state().erase(parameter.unsafeGetTensorImpl());
  if (auto* const state = SessionState::find_current()) state->masters().forget(parameter);
}

/// Takes out of `group` whatever others step, together with its state, which some optimizers are
/// built with.
template <class Others>
void OptimizerShare::State::leave(torch::optim::OptimizerParamGroup& group, Others&& others) {
  std::erase_if(group.params(), [&](const at::Tensor& parameter) {
    if (!others(parameter)) return false;
    forget(parameter);
    return true;
  });
}

/// Adagrad is built with state, of whole parameters where marked modules are sliced later.
void OptimizerShare::State::slice(const SessionParts& session) {
  for (const auto* model : session.state.models()) {
    const WholeTensors whole(session.rank, *model);
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

/// Of the stage's parameters, those that other replicas keep the state of leave the groups.
void OptimizerShare::State::shard(Replicas& replicas, const PlacedParameters& models) {
  const auto& shards = replicas.shards();
  std::unordered_set<const void*> before;
  for (const auto& parameter : sharded) before.insert(parameter.unsafeGetTensorImpl());
  for (const auto& group : optimizer->param_groups()) {
    for (const auto& parameter : group.params()) {
      if (before.count(parameter.unsafeGetTensorImpl()) > 0 || !models.placed(parameter)) continue;
      sharded.push_back(parameter);
    }
  }
  replicas.deal(sharded);
  for (auto& group : optimizer->param_groups()) {
    leave(group, [&](const at::Tensor& parameter) { return shards.is_elsewhere(parameter); });
  }
}

/// It would step tensors that nobody uses, and those that are used not at all.
static void refuse_dropped(const Rank& rank, torch::optim::Optimizer& optimizer) {
  for (const auto& group : optimizer.param_groups()) {
    for (const auto& parameter : group.params()) {
      const auto dropped = tp::name_of_dropped(parameter);
      SMP_REQUIRE(dropped.empty(), "rank ", rank.topology().rank(),
                  ": smp::DistributedOptimizer of parameter '", dropped,
                  "', which the model has no more: a distributed module with parameters of its own "
                  "came in its place; make the optimizer of model.parameters() after the model was "
                  "wrapped");
    }
  }
}

std::vector<const void*> OptimizerShare::State::parameters() const {
  std::vector<const void*> all;
  for (const auto& group : optimizer->param_groups()) {
    for (const auto& parameter : group.params()) all.push_back(parameter.unsafeGetTensorImpl());
  }
  return all;
}

/// Shares the groups out, once a model is placed; more models may be later.
void OptimizerShare::State::follow_placement(const SessionParts& session) {
  const PlacedParameters models(session.state);
  for (auto& group : optimizer->param_groups())
    leave(group, [&](const at::Tensor& tensor) { return models.foreign(tensor); });
  slice(session);
  if (session.replicas.shards().active()) shard(session.replicas, models);
  const auto& topology = session.rank.topology();
  divided = topology.pp_size() > 1 || topology.tp_size() > 1 || !sharded.empty();
  unowned.find(session.rank, *optimizer, models);
  shared = parameters();
}

/// Shares out what the program has put into the groups since, alike on every rank.
void OptimizerShare::State::follow_groups(const SessionParts& session) {
  if (!shared || *shared == parameters()) return;
  refuse_dropped(session.rank, *optimizer);
  follow_placement(session);
}

/// Puts in a load, unless that was done.
void OptimizerShare::State::put(const std::shared_ptr<const Load>& load) {
  if (std::erase(loads, load) > 0) (*load)(*optimizer);
}

/// Puts in the loads that wait, which are the same on all ranks, while there is a session.
void OptimizerShare::State::put_all() {
  if (SessionParts::find_current() == nullptr) return;
  while (!loads.empty()) put(std::shared_ptr<const Load>(loads.front()));
}

/// Steps what this rank has in the groups.
void OptimizerShare::State::step(const SessionParts& session) {
  if (!WideSteps::wanted(session.rank.config(), *optimizer)) {
    optimizer->step();
    return;
  }
  WideSteps(session).run(*optimizer, [this] { optimizer->step(); });
}

static void require_outside_of_steps(const SessionParts* session, const char* what) {
  SMP_REQUIRE(session == nullptr || !session->rank.in_step(), "smp::DistributedOptimizer: ", what,
              " in the body of a step, while gradients of this and other microbatches are still to "
              "come; call it after the step, on every rank");
}

/// An owner would step by the gradient of its own samples. Steps under no_sync() are the same on
/// all replicas; which gradients they gave is not, so these tell each other.
static void refuse_apart(const SessionParts& session, const std::vector<at::Tensor>& sharded) {
  const auto& gradients = session.replicas.gradients();
  if (!gradients.left_apart(sharded)) return;
  const auto all = gather_values(session.rank.groups().replicas(), gradients.apart(sharded),
                                 "DistributedOptimizer::step");
  SMP_REQUIRE(
      std::find(all.begin(), all.end(), true) == all.end(),
      "smp::DistributedOptimizer: step() after a step under no_sync(): each parameter is "
      "stepped by one replica (shard_optimizer_state), and gradients of the others have not "
      "come to it; make the last step before optimizer.step() without no_sync()");
}

/// Of `sharded`, those that the step may have changed somewhere: not the frozen ones, but for what
/// has a gradient of the time before, by which optimizers step it. All replicas call it.
std::vector<at::Tensor> OptimizerShare::State::stepped(const Rank& rank) const {
  const auto frozen = [](const at::Tensor& parameter) { return !parameter.requires_grad(); };
  if (std::none_of(sharded.begin(), sharded.end(), frozen)) return sharded;
  std::string left;  // a letter for each: '+' it is frozen, and has a gradient here
  for (const auto& parameter : sharded) {
    left += frozen(parameter) && parameter.grad().defined() ? '+' : '-';
  }
  const auto all =
      gather_values(rank.groups().replicas(), left, "frozen parameters with gradients");
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
  const auto& session = SessionParts::current();
  refuse_dropped(session.rank, *optimizer);
  const auto doubles = remove_doubles(*optimizer);
  if (doubles > 0) {
    warn(session.state,
         base::concat("smp::DistributedOptimizer: ", doubles,
                      " parameters were given more than once (shared modules, overlapping groups); "
                      "each is stepped once, in its first group"));
  }
  for (DistributedModelBase& model : models) {
    if (optimizer->param_groups().empty() || model.partitioned()) continue;
    set_optimizer_ratio(
        model, bytes_per_weight_byte(session.rank.config(), optimizer->param_groups().front()));
  }
  session.state.facts().add_optimizer(optimizer);
  state_ = std::make_shared<State>(std::move(optimizer));
  set_guards();
  bool any_placed = session.state.models().empty();
  for (auto* model : session.state.models()) {
    any_placed |= model->partitioned();
    if (model->partitioned()) continue;
    model->on_placed([weak = std::weak_ptr<State>(state_), &session] {
      if (const auto alive = weak.lock()) alive->follow_placement(session);
    });
  }
  if (any_placed) state_->follow_placement(session);
  state_->before_step = std::make_shared<const std::function<void()>>(
      [state = state_.get(), &session] { state->follow_groups(session); });
  session.state.before_steps(state_->before_step);
}

/// Sets guards that hold the state weakly, because the optimizer may outlive its share.
void OptimizerShare::set_guards() {
  auto* const guards = dynamic_cast<OptimizerGuards*>(state_->optimizer.get());
  if (guards == nullptr) return;
  const std::weak_ptr<State> weak = state_;
  guards->before_step = [weak] {
    const auto alive = weak.lock();
    if (!alive) return;
    alive->require_whole_step();
    alive->put_all();
  };
  guards->before_archive = [weak](const char* action) {
    const auto alive = weak.lock();
    if (!alive) return;
    alive->require_whole_state(action);
  };
}

OptimizerShare::~OptimizerShare() = default;
OptimizerShare::OptimizerShare(OptimizerShare&&) noexcept = default;
OptimizerShare& OptimizerShare::operator=(OptimizerShare&&) noexcept = default;

torch::optim::Optimizer& OptimizerShare::shared_out() {
  if (const auto* session = SessionParts::find_current()) state_->follow_groups(*session);
  return *state_->optimizer;
}

torch::optim::Optimizer& OptimizerShare::up_to_date() {
  shared_out();
  state_->put_all();
  return *state_->optimizer;
}

void OptimizerShare::load_at_placement(DistributedModelBase& model, State::Load put) {
  const auto load = std::make_shared<const State::Load>(std::move(put));
  state_->loads.push_back(load);
  model.on_placed([weak = std::weak_ptr<State>(state_), waiting = std::weak_ptr(load)] {
    const auto alive = weak.lock();
    if (alive) alive->put(waiting.lock());
  });
}

/// LibTorch's optimizers leave out parameters without gradients, and say nothing. Those of a
/// program that fills in gradients by itself are there.
static void warn_of_missing_backward(const SessionParts& session,
                                     torch::optim::Optimizer& optimizer) {
  if (session.rank.topology().rank() != 0 || !session.state.lacks_backward()) return;
  for (const auto& group : optimizer.param_groups()) {
    for (const auto& parameter : group.params()) {
      if (parameter.grad().defined()) return;
    }
  }
  session.state.note_backward();  // once is enough
  base::log(base::LogLevel::kWarning,
            "rank 0: smp::DistributedOptimizer::step() after steps whose bodies called no "
            "model.backward(loss): there are no gradients, and nothing is trained. Call "
            "model.backward(loss) in the body, or run steps that do not train under "
            "torch::NoGradGuard");
}

void OptimizerShare::step() {
  const PublicCall call("smp::DistributedOptimizer::step");
  const auto* session = SessionParts::find_current();
  require_outside_of_steps(session, "step()");
  auto& state = *state_;
  if (session == nullptr) {
    state.optimizer->step();
    return;
  }
  const server::BetweenSteps recorded(session->rank.server().recorder(),
                                      schedule::Phase::kOptimizer);
  up_to_date();
  refuse_apart(*session, state.sharded);
  warn_of_missing_backward(*session, *state.optimizer);
  const Stepping stepping(state.stepping);
  session->state.facts().note_optimizer_step();
  if (state.unowned.empty()) {
    state.step(*session);
  } else {
    const auto& groups = session->rank.groups();
    const auto ranks = groups.of(Group::kPp);
    state.unowned.find_holders(ranks, groups.replicas());
    for (const auto& tensor : state.unowned.stepped_elsewhere(ranks.rank())) state.forget(tensor);
    state.step(*session);
    state.unowned.give_out(ranks);
  }
  if (state.sharded.empty()) return;
  session->replicas.shards().take_values(state.stepped(session->rank));
}

void OptimizerShare::zero_grad(bool set_to_none) {
  const auto* session = SessionParts::find_current();
  require_outside_of_steps(session, "zero_grad()");
  state_->optimizer->zero_grad(set_to_none);
  if (session == nullptr) return;
  session->state.facts().note_zero_grad();
  auto& gradients = session->replicas.gradients();
  for (auto& group : state_->optimizer->param_groups()) gradients.note_zeroed(group.params());
  gradients.note_zeroed(state_->sharded);
  for (const auto& parameter : state_->sharded) {  // those that others step have left the groups
    if (session->replicas.shards().is_elsewhere(parameter)) {
      at::Tensor(parameter).mutable_grad().reset();
    }
  }
}

}  // namespace smp::detail
