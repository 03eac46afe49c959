// trial/tracer/state_watch.cpp: pictures of members, and who writes which storage.
#include "trial/tracer/state_watch.h"

#include <torch/nn/module.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "base/random.h"
#include "module/running_statistics.h"

namespace smp::partitioning {
namespace {

using simulate::StateKind;

int routed_above(const TracedModel& model, int node) {
  while (node > 0 && (*model.routed)[static_cast<std::size_t>(node)] == nullptr) {
    node = model.tree->nodes[static_cast<std::size_t>(node)].parent;
  }
  return node;
}

/// True if both tensors hold the same bytes. Uses no operator, so that the modes of the running
/// code do not matter.
bool same_bytes(const at::Tensor& a, const at::Tensor& b) {
  return a.nbytes() == b.nbytes() &&
         std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0;
}

bool is_said(const TracedModel& model, int node) {
  const auto* routed = (*model.routed)[static_cast<std::size_t>(node)];
  return routed != nullptr && routed->smp_state_use() != StateUse::kWatched;
}

}  // namespace

StateWatch::StateWatch(const std::vector<TracedModel>& models)
    : models_(models), switches_(models) {
  for (int m = 0; m < static_cast<int>(models.size()); ++m) {
    const auto& model = models[static_cast<std::size_t>(m)];
    for (const auto& module : *model.modules) owned_.leave_out(*module);
    auto& all = watched_.emplace_back(model.modules->size());
    auto& parts = parts_.emplace_back(model.modules->size());
    for (std::size_t i = 0; i < all.size(); ++i) {
      const auto* routed = (*model.routed)[i];
      const bool said = routed != nullptr && routed->smp_state_use() != StateUse::kWatched;
      auto& module = *(*model.modules)[i];
      const bool normalises = module::is_normalisation(module);
      if (said) continue;
      if (routed != nullptr && !normalises) all[i].own = routed->smp_own_part();
      const int node = static_cast<int>(i);
      if (routed == nullptr && !normalises && !is_said(model, routed_above(model, node))) {
        all[i].own = whole_module(module);
        all[i].plain = true;
        parts[static_cast<std::size_t>(routed_above(model, node))].push_back(node);
      }
      for (const auto& tensors :
           {module.named_buffers(/*recurse=*/false), module.named_parameters(/*recurse=*/false)}) {
        for (const auto& item : tensors) {
          const auto& tensor = item.value();
          if (!tensor.defined() || !tensor.has_storage()) continue;
          held_.emplace(tensor.storage().unsafeGetStorageImpl(),
                        Held{m, node, routed_above(model, node), item.key(), normalises});
        }
      }
    }
  }
}

void StateWatch::begin_run(int run) {
  run_ = run;
  created_.clear();
  older_.clear();
  switches_.begin_run();
  for (auto& model : watched_) {
    for (auto& watched : model) {
      watched.bytes = owned_.picture(watched.own);
      watched.depth = 0;
    }
  }
}

void StateWatch::end_run() {
  switches_.end_run();
  for (auto& model : watched_) {
    for (auto& watched : model) compare(watched, watched.plain);
  }
}

/// Compares the module's members with what was last seen, and notes a change.
/// @param own_call  the module's own call ran in between, so that a change is its own
void StateWatch::compare(Watched& watched, bool own_call) {
  if (watched.own.size <= watched.own.base_size) return;
  auto now = owned_.picture(watched.own);
  if (now == watched.bytes) return;
  const bool counts = !own_call || run_ > 0;
  if (own_call && watched.before.empty()) {
    watched.before.assign(watched.bytes.begin(),
                          watched.bytes.begin() + static_cast<std::ptrdiff_t>(watched.own.size));
  }
  if (counts && !std::exchange(watched.changes, true)) {
    std::size_t first = 0;
    while (first < watched.own.size && now[first] == watched.bytes[first]) ++first;
    watched.what =
        first < watched.own.size
            ? base::concat(watched.plain ? "writes members of a part that is not routed, from byte "
                                         : "writes its members, from byte ",
                           first, " of ", watched.own.size)
            : std::string("writes what its members own");
  }
  watched.bytes = std::move(now);
}

void StateWatch::enter(int model, int module) {
  switches_.call_begins();
  if (const auto drawn = drawn_from_.find({model, module}); drawn != drawn_from_.end()) {
    for (auto& each : drawn->second) each.state = each.generator.get_state();
  }
  auto& watched = watched_[static_cast<std::size_t>(model)][static_cast<std::size_t>(module)];
  compare(watched, watched.depth++ > 0);
  compare_parts(model, module);
}

void StateWatch::leave(int model, int module) {
  auto& watched = watched_[static_cast<std::size_t>(model)][static_cast<std::size_t>(module)];
  compare(watched, true);
  --watched.depth;
  compare_parts(model, module);
}

/// Compares the modules that are not routed and run as parts of the call of this routed module.
void StateWatch::compare_parts(int model, int module) {
  const auto m = static_cast<std::size_t>(model);
  for (const int part : parts_[m][static_cast<std::size_t>(module)]) {
    compare(watched_[m][static_cast<std::size_t>(part)], true);
  }
}

void StateWatch::look(const std::vector<std::pair<int, int>>& running) {
  for (const auto& [model, module] : running) {
    compare(watched_[static_cast<std::size_t>(model)][static_cast<std::size_t>(module)], true);
    compare_parts(model, module);
  }
}

void StateWatch::note_use(int model, int module, const at::Tensor& tensor, bool writes) {
  if (!tensor.has_storage()) return;
  const auto [first, last] = held_.equal_range(tensor.storage().unsafeGetStorageImpl());
  for (auto at = first; at != last; ++at) {
    auto& held = at->second;
    const bool own = model == held.model && module == held.routed;
    if (writes) held.written |= run_ > 0 || !own;
    held.by_others |= !own;
  }
}

void StateWatch::note_kept(int model, int module, const at::Tensor& tensor, bool writes) {
  if (!tensor.has_storage()) return;
  const auto& storage = tensor.storage();
  const auto* key = storage.unsafeGetStorageImpl();
  if (created_.count(key) > 0 || held_.count(key) > 0) return;
  older_.try_emplace(key, storage);
  if (!writes || run_ == 0 || model < 0 || is_gradient(key)) return;
  const auto& traced = models_[static_cast<std::size_t>(model)];
  if ((*traced.routed)[static_cast<std::size_t>(module)] == nullptr) return;
  note_change(model, module, "writes a tensor that it keeps, in place");
}

/// True if it is that of a parameter's gradient: backward passes of bodies and modules add to it,
/// and the step's own sums take care of the order.
bool StateWatch::is_gradient(const c10::StorageImpl* memory) const {
  const auto has = [memory](const at::Tensor& parameter) {
    const auto& gradient = parameter.grad();
    return gradient.defined() && gradient.has_storage() &&
           gradient.storage().unsafeGetStorageImpl() == memory;
  };
  return std::any_of(models_.begin(), models_.end(), [&](const TracedModel& model) {
    return std::any_of(model.modules->begin(), model.modules->end(), [&](const auto& module) {
      const auto parameters = module->parameters(/*recurse=*/false);
      return std::any_of(parameters.begin(), parameters.end(), has);
    });
  });
}

void StateWatch::note_generator(int model, int module, const at::Generator& generator) {
  const auto* const of_device = base::device_generator();
  const bool is_default =
      generator == base::default_generator() || (of_device != nullptr && generator == *of_device);
  if (is_default || model < 0) return;
  auto& all = drawn_from_[{model, module}];
  const auto known = std::find_if(
      all.begin(), all.end(), [&](const DrawnFrom& drawn) { return drawn.generator == generator; });
  if (known == all.end()) {
    all.push_back({generator, {}});
    return;
  }
  const auto before = std::exchange(known->state, at::Tensor());
  if (run_ == 0 || !before.defined() || !same_bytes(before, generator.get_state())) return;
  note_change(model, module, "draws from a generator that it keeps");
}

void StateWatch::note_change(int model, int module, const char* what) {
  if (is_said(models_[static_cast<std::size_t>(model)], module)) return;
  auto& watched = watched_[static_cast<std::size_t>(model)][static_cast<std::size_t>(module)];
  watched.changes = true;
  watched.what = what;
}

void StateWatch::note_normalisation(int model, int module, const at::Tensor& statistics,
                                    bool training) {
  if (!statistics.defined() || !statistics.has_storage()) return;
  const auto [first, last] = held_.equal_range(statistics.storage().unsafeGetStorageImpl());
  for (auto at = first; at != last; ++at) {
    auto& held = at->second;
    (training ? held.trains : held.evaluates) = true;
    const bool of_body = held.routed == 0 && routed_root(held.model) == nullptr;
    const bool own = model < 0 ? of_body : model == held.model && module == held.routed;
    held.called_apart |= !own;
  }
}

/// The tensors that modules of `model` hold, ordered by module and name and not by address, so that
/// every run says the same about a module.
std::vector<const StateWatch::Held*> StateWatch::held_by(int model) const {
  std::vector<const Held*> all;
  for (const auto& [storage, held] : held_) {
    if (held.model == model) all.push_back(&held);
  }
  std::sort(all.begin(), all.end(), [](const Held* one, const Held* other) {
    return std::tie(one->module, one->name) < std::tie(other->module, other->name);
  });
  return all;
}

const RoutedBase* StateWatch::routed_root(int model) const {
  return models_[static_cast<std::size_t>(model)].routed->front();
}

void StateWatch::note_result(const at::Tensor& tensor) {
  if (!tensor.defined()) return;
  // Else its address might be used again.
  addresses_.emplace_back(tensor.getIntrusivePtr());
  if (!tensor.has_storage()) return;
  const auto* storage = tensor.storage().unsafeGetStorageImpl();
  if (older_.count(storage) == 0 && held_.count(storage) == 0) created_.insert(storage);
}

std::vector<KeptMembers> StateWatch::kept_members() const {
  std::vector<KeptMembers> all;
  for (std::size_t m = 0; m < watched_.size(); ++m) {
    for (std::size_t i = 0; i < watched_[m].size(); ++i) {
      const auto& watched = watched_[m][i];
      if (watched.before.empty()) continue;
      const int node = static_cast<int>(i);
      const int module = watched.plain ? routed_above(models_[m], node) : node;
      all.push_back({{static_cast<int>(m), module}, watched.own, watched.before, watched.changes});
    }
  }
  return all;
}

std::vector<WrittenMembers> StateWatch::written_members() const {
  std::vector<WrittenMembers> all;
  for (std::size_t m = 0; m < watched_.size(); ++m) {
    for (std::size_t i = 0; i < watched_[m].size(); ++i) {
      const auto& watched = watched_[m][i];
      if (!watched.changes && watched.before.empty()) continue;
      all.push_back({models_[m].tree->nodes[i].path,
                     watched.what.empty() ? "writes its members at its first call" : watched.what});
    }
  }
  return all;
}

std::vector<simulate::StateChange> StateWatch::changes(int model) const {
  std::map<int, simulate::StateChange> found;
  const auto m = static_cast<std::size_t>(model);
  for (std::size_t i = 0; i < watched_[m].size(); ++i) {
    const auto& watched = watched_[m][i];
    for (const int part : parts_[m][i]) {
      const auto& plain = watched_[m][static_cast<std::size_t>(part)];
      if (!plain.changes) continue;
      found[static_cast<int>(i)] = {static_cast<int>(i), StateKind::kShared, plain.what};
    }
    if (watched.changes && !watched.plain) {
      found[static_cast<int>(i)] = {static_cast<int>(i), StateKind::kShared, watched.what};
    }
  }
  for (const Held* const each : held_by(model)) {
    const Held& held = *each;
    if (held.normalises && held.trains && held.called_apart) {
      found[held.routed] = {held.routed, StateKind::kShared,
                            base::concat("writes '", held.name, "', as calls of others do")};
    }
    if (held.normalises && held.trains && held.evaluates) {
      found[held.routed] = {
          held.routed, StateKind::kShared,
          base::concat("writes '", held.name, "', which it reads in evaluation mode")};
    }
    if (!held.written || (held.normalises && !held.by_others)) continue;
    auto& change =
        found.try_emplace(held.routed, simulate::StateChange{held.routed, StateKind::kOrdered, {}})
            .first->second;
    if (held.by_others) change.kind = StateKind::kShared;
    if (change.what.empty()) change.what = base::concat("writes '", held.name, "'");
  }
  if (model == 0 && !switches_.found().empty()) {
    found[0] = {
        0, StateKind::kShared,
        base::concat("writes modes that it leaves for the next microbatch: ", switches_.found())};
  }
  for (const auto& kept : kept_members()) {
    const auto [of_model, module] = kept.owner;
    if (of_model != model || kept.always_change) continue;
    found.try_emplace(module, simulate::StateChange{module, StateKind::kCache, {}});
  }
  std::vector<simulate::StateChange> changes;
  for (auto& [module, change] : found) changes.push_back(std::move(change));
  return changes;
}

}  // namespace smp::partitioning
