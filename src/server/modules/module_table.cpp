// server/modules/module_table.cpp: modules are numbered in the order they come.
#include "server/modules/module_table.h"

#include <torch/nn/module.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/random.h"
#include "module/running_statistics.h"
#include "server/values/tensor_memory.h"

namespace smp::server {
namespace {

/// Returns `path` in memory that is never freed, so that another thread may read it at any time.
/// Models that are built again and again have the same paths.
const char* lasting(const std::string& path) {
  static auto* const mutex = new std::mutex();
  static auto* const paths = new std::set<std::string>();
  const std::lock_guard lock(*mutex);
  return paths->insert(path).first->c_str();
}

bool is_watched(RoutedBase& module, KeptState state) {
  return state == KeptState::kNone && !module::is_normalisation(module.smp_module()) &&
         module.smp_state_use() == StateUse::kWatched;
}

bool is_routed(torch::nn::Module& module) { return dynamic_cast<RoutedBase*>(&module) != nullptr; }

/// Calls `add` with the path and the object of `module`, and of each module below it that runs with
/// it, since it is not routed.
template <class Add>
void for_each_part(torch::nn::Module& module, const Add& add, const std::string& prefix = {}) {
  add(prefix, module);
  for (const auto& child : module.named_children()) {
    if (!is_routed(*child.value())) for_each_part(*child.value(), add, prefix + child.key() + ".");
  }
}

/// Without running statistics.
std::vector<BufferWatch::Buffer> own_buffers(torch::nn::Module& module) {
  std::vector<BufferWatch::Buffer> buffers;
  for_each_part(module, [&](const std::string& path, const torch::nn::Module& part) {
    if (module::is_normalisation(part)) return;
    for (const auto& buffer : part.named_buffers(/*recurse=*/false)) {
      buffers.push_back({path + buffer.key(), buffer.value()});
    }
  });
  return buffers;
}

/// Returns where in a module's own bytes an undefined tensor lies.
std::optional<std::size_t> undefined_tensor_in(const OwnPart& part) {
  const void* const undefined = at::UndefinedTensorImpl::singleton();
  for (std::size_t at = 0; at + sizeof undefined <= part.size; at += alignof(at::Tensor)) {
    if (at >= part.base && at < part.base + part.base_size) continue;
    const void* member = nullptr;
    std::memcpy(&member, part.object + at, sizeof member);
    if (member == undefined) return at;
  }
  return std::nullopt;
}

WeightWatch own_weights(torch::nn::Module& module) {
  WeightWatch weights;
  for_each_part(module, [&](const std::string& path, const torch::nn::Module& part) {
    for (const auto& weight : part.named_parameters(/*recurse=*/false)) {
      if (weight.value().defined()) weights.add(path + weight.key(), weight.value());
    }
  });
  return weights;
}

}  // namespace

void ModuleTable::attach_model(const std::vector<RoutedBase*>& modules,
                               const std::vector<KeptState>& state) {
  const auto model = models_++;
  for (std::size_t i = 0; i < modules.size(); ++i) {
    auto* module = modules[i];
    const auto kept = i < state.size() ? state[i] : KeptState::kNone;
    auto& place = module->smp_place;
    place.index = static_cast<int>(entries_.size());
    auto& entry = *entries_.emplace_back(std::make_unique<Entry>());
    entry.module = module;
    entry.path = place.path;
    entry.random_key = base::mix_key(model, std::string_view(place.path));
    entry.draws_random = module->smp_draws_random();
    entry.statistics = StatisticsWatch(module::normalisations_of(module->smp_module(), is_routed));
    entry.lasting_path = lasting(place.path);
    if (kept == KeptState::kOrdered) any_in_order_ = entry.in_order = true;  // all ranks know
    if (kept == KeptState::kShared) note_state();
    if (is_watched(*module, kept)) {
      entry.watch = MemberWatch(module->smp_own_part());
      entry.buffers = BufferWatch(own_buffers(module->smp_module()));
    }
  }
}

void ModuleTable::note_order(const Entry& entry) noexcept {
  if (entry.in_order) return;
  order_is_news_ = true;
  if (may_be_replayed_) {
    in_order_later_.push_back(&entry);
  } else {
    any_in_order_ = entry.in_order = true;
  }
}

void ModuleTable::all_know_of_order() noexcept {
  any_in_order_ = true;
  order_is_news_ = false;
  enter_in_order();
}

void ModuleTable::may_be_replayed(bool may) noexcept {
  may_be_replayed_ = may;
  if (!may) enter_in_order();
}

void ModuleTable::enter_in_order() noexcept {
  for (const auto* entry : std::exchange(in_order_later_, {})) {
    any_in_order_ = entry->in_order = true;
  }
}

void ModuleTable::detach_model(const std::vector<RoutedBase*>& modules) noexcept {
  for (const auto& own : entries_) {
    auto& entry = *own;
    for (const auto* gone : modules) {  // by address: the module itself may have ended
      if (entry.module != gone) continue;
      entry.module = nullptr;
      entry.buffers = {};  // which would be kept
      entry.weights = {};
      entry.watch = {};
      entry.copy = {};
      entry.statistics = {};
    }
  }
}

void ModuleTable::attach_body(torch::nn::Module& root) {
  for (auto* layer : module::normalisations_of(root, is_routed)) {
    roots_.emplace_back(&root, layer);
    of_body_.add(layer);
  }
}

void ModuleTable::detach_body(const torch::nn::Module& root) noexcept {
  for (const auto& [of, layer] : roots_) {
    if (of == &root) of_body_.remove(layer);
  }
  std::erase_if(roots_, [&](const auto& entry) { return entry.first == &root; });
}

void ModuleTable::begin_step(PpRank rank) {
  of_body_.begin_step();
  for (const auto& own : entries_) {
    auto& entry = *own;
    entry.buffers.begin_step();
    if (entry.module == nullptr) continue;
    entry.statistics.begin_step();
    if (entry.module->smp_place.owner == rank && entry.keeps_order()) {
      if (entry.weights.empty()) entry.weights = own_weights(entry.module->smp_module());
      entry.weights.begin_step();
    }
    if (entry.module->smp_place.owner == rank) continue;
    if (entry.copy.on()) {
      static_cast<void>(entry.copy.changed());
    } else if (entry.module->smp_state_use() != StateUse::kPrivate) {
      entry.copy = MemberWatch(entry.module->smp_own_part());
    }
  }
}

const ModuleTable::Entry* ModuleTable::with_written_statistics(PpRank rank) const {
  for (const auto& own : entries_) {
    const auto& entry = *own;
    if (entry.module == nullptr || entry.module->smp_place.owner != rank) continue;
    if (entry.statistics.written()) return own.get();
  }
  return nullptr;
}

std::string ModuleTable::unset_members(PpRank rank) const {
  constexpr int kMost = 3;
  std::string text;
  int found = 0;
  for (const auto& own : entries_) {
    const auto& entry = *own;
    if (entry.module == nullptr || entry.module->smp_place.owner == rank) continue;
    const auto part = entry.module->smp_own_part();
    const auto offset = undefined_tensor_in(part);
    if (!offset || ++found > kMost) continue;
    text +=
        base::concat(text.empty() ? "" : ", ", "'", entry.path, "' (",
                     entry.module->smp_type_name(), ", byte ", *offset, " of its ", part.size, ")");
  }
  return text;
}

const ModuleTable::Entry& ModuleTable::at(ModuleId id) const {
  const auto number = static_cast<std::size_t>(id.value);
  SMP_ASSERT(number < entries_.size(), "module ", id.value, " of ", entries_.size());
  return *entries_[number];
}

RoutedBase& ModuleTable::module(ModuleId id) const {
  const auto& entry = at(id);
  SMP_REQUIRE(entry.module != nullptr, "module '", entry.path,
              "' was called, but its smp::DistributedModel has ended on this rank; keep the model "
              "on every rank until the last step of any rank that uses it");
  return *entry.module;
}

const char* ModuleTable::path(ModuleId id) const noexcept {
  const auto number = static_cast<std::size_t>(id.value);
  return number < entries_.size() ? entries_[number]->path.c_str() : "<body>";
}

}  // namespace smp::server
