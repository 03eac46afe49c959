// server/recompute/recomputed_calls.cpp: a call becomes a region.
#include "server/recompute/recomputed_calls.h"

#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include <charconv>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "module/call_handler.h"
#include "module/later_tensor.h"
#include "module/running_statistics.h"
#include "server/modules/deferred_statistics.h"
#include "server/modules/weight_watch.h"
#include "server/promises/promised_tensor.h"
#include "server/recompute/region.h"
#include "server/recompute/replay_place.h"
#include "server/running/execution_scope.h"
#include "server/values/tensor_memory.h"
#include "smp/nn/sequential.h"
#include "smp/recompute/activation_checkpointing.h"
#include "smp/recompute/checkpoint_sequential.h"

namespace smp::server {
namespace {

/// True if a call made now is run as it is: nothing is saved, or it belongs to a call that runs
/// again as a whole, or a trial runs, which has no backward.
bool runs_plainly() {
  if (!at::GradMode::is_enabled() || Region::current() != nullptr) return true;
  const auto* const handler = module::call_handler().get();
  return handler != nullptr && handler->in_step() && ExecutionScope::current() == nullptr;
}

/// Names the rank, where there are any; for messages.
std::string on_rank(const std::string& what) {
  const auto* const scope = ExecutionScope::current();
  return scope == nullptr ? what : base::concat("rank ", scope->services().rank, ": ", what);
}

std::string name_of(RoutedBase& module) {
  return base::concat("module '", module.smp_place.path, "' (", module.smp_type_name(), ")");
}

/// Parameters and buffers, and their memory.
struct Watched {
  WeightWatch watch;
  std::vector<const void*> memory;
};

/// Adds those of all modules below, but for running statistics: these are collected.
void watch_tensors(Watched& watched, torch::nn::Module& module) {
  const auto add = [&](const auto& tensors) {
    for (const auto& item : tensors) {
      if (!item.value().defined()) continue;
      watched.watch.add(item.key(), item.value());
      watched.memory.push_back(memory_of(item.value()));
    }
  };
  for (const auto& below : module.modules()) {
    add(below->named_parameters(/*recurse=*/false));
    if (!module::is_normalisation(*below)) add(below->named_buffers(/*recurse=*/false));
  }
}

/// While it lives, normalisation layers of `module` work on copies of their statistics, which are
/// dropped: but for calls in a step, which have their own.
class StatisticsAside {
 public:
  explicit StatisticsAside(RoutedBase& module)
      : layers_(module::normalisations_of(module.smp_module(), [](auto&) { return false; })) {
    const bool by_call = ExecutionScope::current() != nullptr && module.smp_place.placed();
    if (by_call || layers_.empty()) return;
    execution_.emplace(statistics_, layers_, 0);
  }

 private:
  std::vector<torch::nn::Module*> layers_;
  DeferredStatistics statistics_;
  std::optional<DeferredStatistics::Execution> execution_;
};

/// A call that becomes a region.
struct RecordedCall {
  std::string name;
  RoutedBase& module;
  Thunk plain;
  const CheckpointOptions& options;
};

/// Fetches arguments that other calls have promised. Those of module/later_tensor.h stay without
/// values: what the call asks of them it is given again in the second run.
void fetch(Packet& arguments) {
  for (auto& tensor : arguments.tensors) {
    if (tensor.defined() && module::source_of(tensor) == nullptr) tensor = fetched(tensor);
  }
}

/// Runs the call for the first time.
Packet recorded(const RecordedCall& call, Watched watched, const ReplayPlace& place,
                Packet& arguments) {
  fetch(arguments);
  auto& module = call.module;
  auto owner = module.smp_module().shared_from_this();
  const auto region = std::make_shared<Region>(call.name, arguments.tensors,
                                               std::move(watched.watch), std::move(watched.memory));
  if (call.options.keep == kProducts) region->keep_products();
  region->set_rerun([owner, &module, plain = call.plain, bytes = arguments.bytes,
                     place](std::vector<at::Tensor>&& inputs) {
    static_cast<void>(owner);  // lives as long as this
    place.enter([&] {
      const StatisticsAside statistics(module);
      Packet again{bytes, std::move(inputs)};
      plain(module, again);
    });
  });
  Packet result;
  region->record([&] { result = call.plain(module, arguments); });
  return result;
}

}  // namespace

bool RecomputedCalls::applies(const RoutedBase&) const { return !runs_plainly(); }

Packet RecomputedCalls::run(RoutedBase& module, const CallEntry&, Packet& arguments, Thunk plain) {
  Watched watched;
  watch_tensors(watched, module.smp_module());
  const ReplayPlace place(&module, options_.preserve_rng_state);
  return recorded({on_rank(name_of(module)), module, plain, options_}, std::move(watched), place,
                  arguments);
}

bool RecomputedGroups::groups() const { return !runs_plainly(); }

Packet RecomputedGroups::run_group(RoutedBase& module, std::size_t first, std::size_t last,
                                   Packet& arguments, Thunk plain) {
  Watched watched;
  const auto children = module.smp_module().children();
  for (std::size_t i = first; i < last; ++i) watch_tensors(watched, *children.at(i));
  const ReplayPlace place(&module, options_.preserve_rng_state, /*in_midst=*/true);
  return recorded(
      {on_rank(base::concat("modules ", first, " to ", last - 1, " of ", name_of(module))), module,
       plain, options_},
      std::move(watched), place, arguments);
}

bool recomputes(const RoutedBase& module) noexcept {
  const auto* const wrapper = module.smp_wrapper.get();
  return dynamic_cast<const RecomputedCalls*>(wrapper) != nullptr ||
         dynamic_cast<const RecomputedGroups*>(wrapper) != nullptr;
}

bool keeps_products(const RoutedBase& module) noexcept {
  const auto* const wrapper = module.smp_wrapper.get();
  const auto keep = [](const auto* marked) {
    return marked != nullptr && marked->options().keep == KeepPolicy::kProducts;
  };
  return keep(dynamic_cast<const RecomputedCalls*>(wrapper)) ||
         keep(dynamic_cast<const RecomputedGroups*>(wrapper));
}

void recompute_calls_of(RoutedBase& module, const CheckpointOptions& options) {
  module.smp_wrapper = std::make_shared<RecomputedCalls>(options);
}

}  // namespace smp::server

namespace smp {

namespace {

/// Marks the routed modules below `module` that can be marked: those on other ranks are called in
/// its call, and recompute their own part.
void mark_below(torch::nn::Module& module, const std::shared_ptr<CallWrapper>& wrapper) {
  for (const auto& below : module.modules(/*include_self=*/false)) {
    auto* const routed = dynamic_cast<RoutedBase*>(below.get());
    if (routed != nullptr && routed->smp_cannot_cross().empty()) routed->smp_wrapper = wrapper;
  }
}

/// Marks the outermost routed modules of `module`. @return whether there is one
bool mark(torch::nn::Module& module, const std::shared_ptr<CallWrapper>& wrapper) {
  if (auto* const routed = dynamic_cast<RoutedBase*>(&module)) {
    const auto obstacle = routed->smp_cannot_cross();
    SMP_REQUIRE_AS(UnsupportedError, obstacle.empty(), "smp::set_activation_checkpointing of a ",
                   routed->smp_type_name(), ": ", obstacle,
                   ", so its calls cannot be repeated; give the type a Codec (smp/codec.h), or "
                   "checkpoint the modules in it or around it");
    routed->smp_wrapper = wrapper;
    mark_below(module, wrapper);
    return true;
  }
  bool any = false;
  for (const auto& child : module.children()) any |= mark(*child, wrapper);
  return any;
}

/// Returns the most modules of a group; 0: any number.
std::size_t size_of_groups(const std::string& strategy) {
  const std::string group = "group_";
  if (strategy == "each") return 1;
  if (strategy == "contiguous") return 0;
  std::size_t size = 0;
  const char* const end = strategy.data() + strategy.size();
  const bool numbered = strategy.starts_with(group) &&
                        std::from_chars(strategy.data() + group.size(), end, size).ptr == end &&
                        size > 0;
  SMP_REQUIRE(numbered, "activation checkpointing: there is no strategy \"", strategy,
              "\"; use \"each\", \"contiguous\" or \"group_2\", with a number from 1");
  return size;
}

/// Marks a Sequential for groups of its modules, and what these have on other ranks.
void mark_groups(torch::nn::Module& module, const CheckpointOptions& options) {
  auto* const sequential = dynamic_cast<nn::SequentialImpl*>(&module);
  SMP_REQUIRE_AS(UnsupportedError, sequential != nullptr,
                 "smp::set_activation_checkpointing: strategy \"", options.strategy, "\" of a ",
                 module.name(), "; strategies are for an smp::nn::Sequential");
  sequential->smp_wrapper =
      std::make_shared<server::RecomputedGroups>(size_of_groups(options.strategy), options);
  const auto below = std::make_shared<server::RecomputedCalls>(options);
  for (const auto& child : module.children()) mark_below(*child, below);
}

}  // namespace

void set_activation_checkpointing(torch::nn::Module& module, const CheckpointOptions& options) {
  if (!options.strategy.empty()) return mark_groups(module, options);
  SMP_REQUIRE_AS(
      UnsupportedError, mark(module, std::make_shared<server::RecomputedCalls>(options)),
      "smp::set_activation_checkpointing: neither the ", module.name(),
      " nor anything in it is routed, so nothing would be computed again; use the modules of "
      "smp::nn, or declare its class with SMP_MODULE");
}

void unset_activation_checkpointing(torch::nn::Module& module) {
  for (const auto& each : module.modules()) {
    if (auto* const routed = dynamic_cast<RoutedBase*>(each.get())) routed->smp_wrapper.reset();
  }
}

Packet detail::run_recomputed(Packet&& arguments, std::function<Packet(Packet&)> code,
                              const CheckpointOptions& options) {
  using namespace server;
  SMP_REQUIRE(options.strategy.empty(), "smp::checkpoint: strategy \"", options.strategy,
              "\"; strategies are for an smp::nn::Sequential");
  if (runs_plainly()) return code(arguments);
  fetch(arguments);
  const auto region = std::make_shared<Region>(on_rank("the code of smp::checkpoint()"),
                                               arguments.tensors, WeightWatch());
  if (options.keep == kProducts) region->keep_products();
  region->set_rerun(
      [code, bytes = arguments.bytes,
       place = ReplayPlace(nullptr, options.preserve_rng_state)](std::vector<at::Tensor>&& inputs) {
        place.enter([&] {
          Packet again{bytes, std::move(inputs)};
          code(again);
        });
      });
  Packet result;
  region->record([&] { result = code(arguments); });
  return result;
}

detail::GroupsWhile::GroupsWhile(nn::SequentialImpl& module, CheckpointOptions options)
    : module_(module), outer_(module.smp_wrapper) {
  if (options.strategy.empty()) options.strategy = "each";
  module.smp_wrapper =
      std::make_shared<server::RecomputedGroups>(size_of_groups(options.strategy), options);
}

detail::GroupsWhile::~GroupsWhile() { module_.smp_wrapper = std::move(outer_); }

}  // namespace smp
