// api/replicas/replica_gradients.cpp: see the header.
#include "api/replicas/replica_gradients.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <iterator>
#include <unordered_set>
#include <utility>

#include "api/rank/rank.h"
#include "api/replicas/optimizer_shards.h"
#include "api/state/session_state.h"
#include "base/log.h"
#include "fiber/scheduler.h"
#include "smp/distributed_model.h"
#include "tp/slices/sliced_parameters.h"

namespace smp {

/// Forgets the models, but not which gradients steps have left apart or with one replica, whatever
/// models come and go.
void ReplicaGradients::forget() {
  models_.clear();
  places_.clear();
  for (auto item = owned_.begin(); item != owned_.end();) {
    item = item->second.expired() ? owned_.erase(item) : std::next(item);
  }
  if (apart_.empty()) return;
  std::unordered_set<const void*> alive;
  for (const auto* model : state_.models()) {
    for (const auto& parameter : model->base_module().parameters()) {
      if (apart_.contains(parameter.unsafeGetTensorImpl())) {
        alive.insert(parameter.unsafeGetTensorImpl());
      }
    }
  }
  apart_ = std::move(alive);
}

/// Finds the parameters of each model; what two models share is added up with the first.
void ReplicaGradients::find_models() {
  const auto& groups = rank_.groups();
  const int copies = groups.ranks_of_batch();
  std::unordered_set<const void*> seen;
  for (const auto* model : state_.models()) {
    if (!model->partitioned()) continue;
    const tp::SlicedParameters slices(model->base_module());
    std::vector<at::Tensor> whole, sliced;
    std::vector<Parameter> parameters;
    for (auto& parameter : model->local_parameters()) {
      if (!seen.insert(parameter.unsafeGetTensorImpl()).second) continue;
      const bool is_slice = slices.contain(parameter);
      (is_slice ? sliced : whole).push_back(parameter);
      parameters.push_back(
          {parameter, is_slice ? groups.slice_replicas().size() : groups.num_replicas() / copies,
           is_slice ? 1 : copies});
    }
    auto of_whole = make_reducer(groups.replicas(), whole, copies);
    auto of_sliced = make_reducer(groups.slice_replicas(), sliced, 1);
    models_.push_back({model, std::move(of_whole), std::move(of_sliced), std::move(parameters)});
  }
}

/// Makes a reducer with lanes of its own, apart from those of the reducers made before it.
std::unique_ptr<dp::GradientReducer> ReplicaGradients::make_reducer(
    const d2d::Communicator& members, const std::vector<at::Tensor>& parameters, int divisor) {
  constexpr std::uint64_t kFirstLane = std::uint64_t{1} << 48, kLanes = std::uint64_t{1} << 32;
  auto reducer = std::make_unique<dp::GradientReducer>(members, parameters, rank_.bucket_bytes(),
                                                       kFirstLane + kLanes * places_.size(),
                                                       divisor, shards_.owners_of(parameters));
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    places_[parameters[i].unsafeGetTensorImpl()] = {reducer.get(), i};
  }
  return reducer;
}

template <class Do>
void ReplicaGradients::for_each_reducer(Do&& act) {
  for (const auto& model : models_) {
    act(model, *model.whole);
    act(model, *model.sliced);
  }
}

ReplicaGradients::Reports ReplicaGradients::report() {
  if (models_.empty()) find_models();
  Reports reports;
  for_each_reducer([&](const auto&, auto& reducer) { reports.push_back(reducer.report()); });
  return reports;
}

/// Returns the numbers of slice_replicas() among all replicas.
std::vector<std::size_t> ReplicaGradients::replicas_of_slices() const {
  const auto all = rank_.groups().replicas(), same = rank_.groups().slice_replicas();
  std::vector<std::size_t> numbers;
  for (const auto rank : same.members()) {
    numbers.push_back(static_cast<std::size_t>(all.members().position(rank)));
  }
  return numbers;
}

/// The order matters: before the first step with gradients nothing is known of them, and nothing
/// begins early.
void ReplicaGradients::begin_step(std::int64_t step) {
  if (rank_.groups().num_replicas() == 1) return;
  begin_early(static_cast<std::uint64_t>(step));
  if (models_.empty()) find_models();
  make_terms();
}

/// True if the gradient of `parameter` is the sum that was made for its owner here.
bool ReplicaGradients::is_here_alone(const at::Tensor& parameter) const {
  const auto found = owned_.find(parameter.unsafeGetTensorImpl());
  return found != owned_.end() && parameter.grad().defined() &&
         found->second.lock() == parameter.grad().getIntrusivePtr();
}

/// Makes of the gradients that are there before the step terms of a sum that is what they are.
void ReplicaGradients::make_terms() {
  const at::NoGradGuard no_grad;
  for (auto& model : models_) {
    model.adding = true;
    for (const auto& [parameter, terms, divisor] : model.parameters) {
      const auto& gradient = parameter.grad();
      if (!gradient.defined()) continue;
      if (is_here_alone(parameter)) {
        if (divisor != 1) gradient.mul_(divisor);
      } else if (terms != 1) {
        gradient.div_(terms);
      }
    }
  }
}

/// Makes of terms that were not added up gradients of this replica, which count like a sum.
void ReplicaGradients::make_whole(Model& model) const {
  const at::NoGradGuard no_grad;
  if (!std::exchange(model.adding, false)) return;
  for (const auto& [parameter, terms, divisor] : model.parameters) {
    const auto& gradient = parameter.grad();
    if (!gradient.defined()) continue;
    if (is_here_alone(parameter)) {
      if (divisor != 1) gradient.div_(divisor);
    } else if (terms != 1) {
      gradient.mul_(terms);
    }
  }
}

/// Notes the sums that this rank has alone, because it owns their parameters.
void ReplicaGradients::note_owned(const Model& model) {
  for (const auto& parameter : model.parameters) {
    const auto* const key = parameter.tensor.unsafeGetTensorImpl();
    const auto& gradient = parameter.tensor.grad();
    owned_.erase(key);
    if (!gradient.defined() || !shards_.is_here(parameter.tensor)) continue;
    owned_.emplace(key, WeakGradient(gradient.getIntrusivePtr()));
  }
}

/// Sets the hook of a model's reducers; buckets of slices are numbered after those of whole
/// parameters.
void ReplicaGradients::set_hook(const Model& model) {
  const auto hook = model.model->comm_hook();
  model.whole->set_hook(hook);
  model.sliced->set_hook(hook, model.whole->buckets());
}

void ReplicaGradients::begin_early(std::uint64_t step) {
  for (const auto& model : models_) set_hook(model);
  for_each_reducer([&](const Model& model, auto& reducer) {
    if (!rank_.config().overlapping_allreduce || !model.model->syncs_gradients()) return;
    reducer.begin_step(step, rank_.server().wake());
  });
}

/// Also moves messages on, because the fiber that runs backward may not wait for a long time.
void ReplicaGradients::on_final(const at::Tensor& parameter) {
  const auto place = places_.find(parameter.unsafeGetTensorImpl());
  if (place == places_.end()) return;
  place->second.reducer->note_final(place->second.number);
  bool under_way = false;
  for_each_reducer([&](const auto&, auto& reducer) { under_way |= reducer.under_way(); });
  if (!under_way) return;
  fiber::Scheduler::instance().poll_all();
  on_pause();
}

void ReplicaGradients::on_pause() {
  for_each_reducer([](const auto&, auto& reducer) { reducer.progress(); });
}

std::uint64_t ReplicaGradients::averaged_early() {
  std::uint64_t buckets = 0;
  for_each_reducer([&](const auto&, auto& reducer) { buckets += reducer.averaged_early(); });
  return buckets;
}

void ReplicaGradients::end_early() noexcept {
  for_each_reducer([](const auto&, auto& reducer) { reducer.end_step(); });
}

void ReplicaGradients::end_step() noexcept try {
  end_early();
  for (auto& model : models_) make_whole(model);
} catch (const std::exception& error) {
  base::log(base::LogLevel::kWarning, "rank ", rank_.topology().rank(),
            ": gradients that were not added up over the replicas stay terms of their sum: ",
            error.what(), "; zero them before the next step");
}

void ReplicaGradients::reduce(const std::vector<Reports>& reports, std::int64_t step) {
  const auto same_slices = replicas_of_slices();
  const auto number = static_cast<std::uint64_t>(step);
  for (std::size_t i = 0; i < models_.size(); ++i) {
    auto& model = models_[i];
    if (!model.model->syncs_gradients()) {
      for (const auto& parameter : model.model->local_parameters()) {
        apart_.insert(parameter.unsafeGetTensorImpl());
      }
      continue;
    }
    if (!apart_.empty()) forget_apart(model.model->local_parameters());
    Reports of_whole, of_slices;
    for (const auto& replica : reports) of_whole.push_back(replica.at(2 * i));
    for (const auto replica : same_slices) of_slices.push_back(reports.at(replica).at(2 * i + 1));
    set_hook(model);
    model.whole->reduce(of_whole, number);
    model.sliced->reduce(of_slices, number);
    model.adding = false;
    note_owned(model);
  }
}

void ReplicaGradients::forget_apart(const std::vector<at::Tensor>& parameters) {
  for (const auto& parameter : parameters) apart_.erase(parameter.unsafeGetTensorImpl());
}

bool ReplicaGradients::left_apart(const std::vector<at::Tensor>& parameters) const {
  if (apart_.empty()) return false;
  return std::any_of(parameters.begin(), parameters.end(), [this](const auto& parameter) {
    return apart_.contains(parameter.unsafeGetTensorImpl());
  });
}

bool ReplicaGradients::apart(const std::vector<at::Tensor>& parameters) const {
  if (apart_.empty()) return false;
  return std::any_of(parameters.begin(), parameters.end(), [this](const auto& parameter) {
    return parameter.grad().defined() && apart_.contains(parameter.unsafeGetTensorImpl());
  });
}

}  // namespace smp
