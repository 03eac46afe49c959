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
#include "server/graph/gradient_sum.h"
#include "smp/distributed_model.h"
#include "tp/slices/sliced_parameters.h"

namespace smp {

/// Forgets the models, but not which gradients steps have left apart or with one replica, whatever
/// models come and go.
void ReplicaGradients::forget() {
  models_.clear();
  places_.clear();
  if (apart_.empty() && summed_.empty() && left_.empty()) return;
  std::unordered_set<const void*> alive;
  for (const auto* model : state_.models()) {
    for (const auto& parameter : model->base_module().parameters()) {
      alive.insert(parameter.unsafeGetTensorImpl());
    }
  }
  const auto is_gone = [&](const void* parameter) { return !alive.contains(parameter); };
  std::erase_if(apart_, is_gone);
  std::erase_if(left_, is_gone);
  for (auto item = summed_.begin(); item != summed_.end();) {
    item = is_gone(item->first) ? summed_.erase(item) : std::next(item);
  }
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
  for_each_reducer([&](const auto& model, auto& reducer) {
    reports.push_back(reducer.report());
    note_given(model, reducer, reports.back());
  });
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

/// True if the gradient of `parameter` lies here alone, with its owner: it counts as it is.
bool ReplicaGradients::is_whole_here(const at::Tensor& parameter) const {
  return parameter.grad().defined() && shards_.is_here(parameter) &&
         summed_.count(parameter.unsafeGetTensorImpl()) > 0;
}

/// Finds out what has become of a gradient since it was added up for its owner. What the program
/// has put beside it, in a replica that had none any more, waits for the end of the step: then it
/// is known whether the owner has it too.
void ReplicaGradients::look_at_given(Parameter& parameter) {
  const auto found = summed_.find(parameter.tensor.unsafeGetTensorImpl());
  if (found == summed_.end()) return;
  auto& gradient = at::Tensor(parameter.tensor).mutable_grad();
  if (shards_.is_here(parameter.tensor)) {
    if (!gradient.defined()) {  // zeroed, by the program
      summed_.erase(found);
    } else if (found->second.lock() == gradient.getIntrusivePtr()) {
      parameter.given = Given::kSum;
    } else {
      parameter.given = Given::kReplaced;
      parameter.aside = gradient.clone();
    }
  } else if (gradient.defined() && !left_.contains(found->first)) {
    parameter.given = Given::kBeside;
    parameter.aside = std::exchange(gradient, at::Tensor());
  }
}

/// Makes of the gradients that are there before the step terms of a sum that is what they are.
void ReplicaGradients::make_terms() {
  const at::NoGradGuard no_grad;
  for (auto& model : models_) {
    model.adding = true;
    for (auto& parameter : model.parameters) {
      look_at_given(parameter);
      const auto& gradient = parameter.tensor.grad();
      if (!gradient.defined()) continue;
      if (is_whole_here(parameter.tensor)) {
        if (parameter.divisor != 1) gradient.mul_(parameter.divisor);
      } else if (parameter.terms != 1) {
        gradient.div_(parameter.terms);
      }
    }
  }
}

/// Makes of terms that were not added up gradients of this replica, which count like a sum. What a
/// failed step has put aside lies in `.grad` again.
void ReplicaGradients::make_whole(Model& model) {
  const at::NoGradGuard no_grad;
  if (!std::exchange(model.adding, false)) return;
  for (auto& parameter : model.parameters) {
    auto& gradient = at::Tensor(parameter.tensor).mutable_grad();
    if (is_whole_here(parameter.tensor)) {
      if (parameter.divisor != 1) gradient.div_(parameter.divisor);
    } else if (gradient.defined() && parameter.terms != 1) {
      gradient.mul_(parameter.terms);
    }
    auto aside = std::exchange(parameter.aside, at::Tensor());
    const auto given = std::exchange(parameter.given, Given::kNothing);
    note_left(parameter.tensor);
    if (given == Given::kBeside) server::add_gradient(gradient, std::move(aside));
  }
}

/// Notes what a step that has added nothing up leaves of a parameter with an owner.
void ReplicaGradients::note_left(const at::Tensor& parameter) {
  const auto* const key = parameter.unsafeGetTensorImpl();
  const auto& gradient = parameter.grad();
  if (!gradient.defined()) return;
  if (is_whole_here(parameter)) {  // additions may have made another tensor of it
    summed_.insert_or_assign(key, WeakGradient(gradient.getIntrusivePtr()));
  } else if (shards_.is_elsewhere(parameter)) {
    left_.insert(key);
  }
}

/// Notes the sums that were made for owners: only these have them.
void ReplicaGradients::note_summed(const Model& model) {
  for (const auto& parameter : model.parameters) {
    if (shards_.owner_of(parameter.tensor) < 0) continue;
    const auto* const key = parameter.tensor.unsafeGetTensorImpl();
    left_.erase(key);
    summed_.insert_or_assign(key, WeakGradient(parameter.tensor.grad().getIntrusivePtr()));
  }
}

/// Says in the report of a reducer what lay in `.grad` before the step.
void ReplicaGradients::note_given(const Model& model, const dp::GradientReducer& reducer,
                                  dp::GradientReducer::Report& report) const {
  for (const auto& parameter : model.parameters) {
    const auto& place = places_.at(parameter.tensor.unsafeGetTensorImpl());
    if (parameter.given == Given::kNothing || place.reducer != &reducer) continue;
    report.given.resize(report.forms.size(), static_cast<char>(Given::kNothing));
    report.given[place.number] = static_cast<char>(parameter.given);
    if (parameter.given != Given::kBeside) continue;
    const auto& gradient = parameter.tensor.grad();
    const bool sparse =
        parameter.aside.is_sparse() && (!gradient.defined() || gradient.is_sparse());
    report.forms[place.number] = dp::GradientReducer::form(sparse);
  }
}

/// Knowing what lay in `.grad` in all replicas, makes terms of what was put aside, or drops it: the
/// owner has it in its own.
/// @param reports  of all replicas
void ReplicaGradients::take_given(Model& model, const dp::GradientReducer& reducer,
                                  const std::vector<dp::GradientReducer::Report>& reports) {
  const at::NoGradGuard no_grad;
  for (auto& parameter : model.parameters) {
    const auto* const key = parameter.tensor.unsafeGetTensorImpl();
    const auto& place = places_.at(key);
    if (place.reducer != &reducer) continue;
    const auto given = std::exchange(parameter.given, Given::kNothing);
    const auto aside = std::exchange(parameter.aside, at::Tensor());
    if (!reducer.is_term(reports, place.number)) continue;
    summed_.erase(key);
    if (!aside.defined()) continue;
    const double share = 1.0 / parameter.terms;
    server::add_gradient(at::Tensor(parameter.tensor).mutable_grad(),
                         aside * (given == Given::kBeside ? share : share - parameter.divisor));
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
    std::vector<dp::GradientReducer::Report> of_whole, of_slices;
    for (const auto& replica : reports) of_whole.push_back(replica.at(2 * i));
    for (const auto replica : same_slices) of_slices.push_back(reports.at(replica).at(2 * i + 1));
    take_given(model, *model.whole, of_whole);
    take_given(model, *model.sliced, of_slices);
    if (!model.model->syncs_gradients()) {
      for (const auto& parameter : model.model->local_parameters()) {
        apart_.insert(parameter.unsafeGetTensorImpl());
      }
      continue;
    }
    if (!apart_.empty()) forget_apart(model.model->local_parameters());
    set_hook(model);
    model.whole->reduce(of_whole, number);
    model.sliced->reduce(of_slices, number);
    model.adding = false;
    note_summed(model);
  }
}

void ReplicaGradients::forget_apart(const std::vector<at::Tensor>& parameters) {
  for (const auto& parameter : parameters) apart_.erase(parameter.unsafeGetTensorImpl());
}

void ReplicaGradients::note_zeroed(const std::vector<at::Tensor>& parameters) {
  forget_apart(parameters);
  for (const auto& parameter : parameters) {
    left_.erase(parameter.unsafeGetTensorImpl());
    summed_.erase(parameter.unsafeGetTensorImpl());
  }
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
