// server/recompute/recomputed_calls.cpp: a call becomes a region.
#include "server/recompute/recomputed_calls.h"

#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/check.h"
#include "module/call_handler.h"
#include "module/running_statistics.h"
#include "server/modules/deferred_statistics.h"
#include "server/modules/weight_watch.h"
#include "server/promises/promised_tensor.h"
#include "server/recompute/region.h"
#include "server/recompute/replay_place.h"
#include "server/running/execution_scope.h"
#include "smp/recompute/activation_checkpointing.h"

namespace smp::server {
namespace {

/// True if a call made now is run as it is: nothing is saved, or it belongs to a call that runs
/// again as a whole, or a trial runs, which has no backward.
bool runs_plainly() {
  if (!at::GradMode::is_enabled() || Region::current() != nullptr) return true;
  const auto* const handler = module::call_handler().get();
  return handler != nullptr && handler->in_step() && ExecutionScope::current() == nullptr;
}

std::string name_of(RoutedBase& module) {
  return base::concat("module '", module.smp_place.path, "' (", module.smp_type_name(), ")");
}

/// Parameters and buffers of all modules below, but for running statistics: these are collected.
WeightWatch watched_tensors(torch::nn::Module& module) {
  WeightWatch watch;
  const auto add = [&](const auto& tensors) {
    for (const auto& item : tensors) {
      if (item.value().defined()) watch.add(item.key(), item.value());
    }
  };
  for (const auto& below : module.modules()) {
    add(below->named_parameters(/*recurse=*/false));
    if (!module::is_normalisation(*below)) add(below->named_buffers(/*recurse=*/false));
  }
  return watch;
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

}  // namespace

bool RecomputedCalls::applies(const RoutedBase&) const { return !runs_plainly(); }

Packet RecomputedCalls::run(RoutedBase& module, const CallEntry&, Packet& arguments, Thunk plain) {
  for (auto& tensor : arguments.tensors) {
    if (tensor.defined()) tensor = fetched(tensor);
  }
  auto owner = module.smp_module().shared_from_this();
  const auto region = std::make_shared<Region>(name_of(module), arguments.tensors,
                                               watched_tensors(module.smp_module()));
  region->set_rerun([owner, &module, plain, bytes = arguments.bytes,
                     place = ReplayPlace(&module, keep_random_)](std::vector<at::Tensor>&& inputs) {
    static_cast<void>(owner);  // lives as long as this
    place.enter([&] {
      const StatisticsAside statistics(module);
      Packet again{bytes, std::move(inputs)};
      plain(module, again);
    });
  });
  Packet result;
  region->record([&] { result = plain(module, arguments); });
  return result;
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

}  // namespace

void set_activation_checkpointing(torch::nn::Module& module, const CheckpointOptions& options) {
  SMP_REQUIRE_AS(
      UnsupportedError,
      mark(module, std::make_shared<server::RecomputedCalls>(options.preserve_rng_state)),
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
  if (runs_plainly()) return code(arguments);
  for (auto& tensor : arguments.tensors) {
    if (tensor.defined()) tensor = fetched(tensor);
  }
  const auto region =
      std::make_shared<Region>("the code of smp::checkpointed()", arguments.tensors, WeightWatch());
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

}  // namespace smp
