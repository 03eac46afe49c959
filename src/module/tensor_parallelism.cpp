// module/tensor_parallelism.cpp: marks that routed modules carry. The scope belongs to the fiber,
// as that of smp::partition.
#include "smp/detail/tensor_parallelism.h"

#include <torch/nn/module.h>

#include "base/check.h"
#include "base/fiber_local.h"
#include "smp/detail/call.h"

namespace smp {
namespace {

const base::FiberLocal<const tensor_parallelism>& innermost_mark() {
  static const base::FiberLocal<const tensor_parallelism> scope;
  return scope;
}

bool mark(torch::nn::Module& module, bool enabled) {
  auto* const routed = dynamic_cast<RoutedBase*>(&module);
  if (routed != nullptr) routed->smp_tensor_parallel = enabled;
  return routed != nullptr;
}

}  // namespace

tensor_parallelism::tensor_parallelism(bool enabled)
    : enabled_(enabled), outer_(innermost_mark().get()) {
  innermost_mark().set(this);
}
tensor_parallelism::~tensor_parallelism() { innermost_mark().set(outer_); }

std::optional<bool> tensor_parallelism::wanted() noexcept {
  const auto* const scope = innermost_mark().get();
  return scope == nullptr ? std::nullopt : std::optional(scope->enabled_);
}

/// A placed model has followed its marks, and would follow no other ones. (Those of one that is
/// wrapped and not placed are compared when it is.)
static void require_not_placed(const torch::nn::Module& module, bool enabled) {
  const auto* const routed = dynamic_cast<const RoutedBase*>(&module);
  if (routed == nullptr || routed->smp_tensor_parallel.value_or(false) == enabled) return;
  SMP_REQUIRE(!routed->smp_place.placed(), "smp::set_tensor_parallelism: module '",
              routed->smp_place.path.empty() ? "<root>" : routed->smp_place.path,
              "' belongs to a model that is placed already; mark modules before the model is "
              "wrapped in an smp::DistributedModel");
}

void set_tensor_parallelism(torch::nn::Module& module, bool enabled) {
  require_not_placed(module, enabled);
  for (const auto& below : module.modules(/*include_self=*/false)) {
    require_not_placed(*below, enabled);
  }
  bool any = mark(module, enabled);
  for (const auto& below : module.modules(/*include_self=*/false)) any |= mark(*below, enabled);
  SMP_REQUIRE(any || !enabled || module.parameters().empty(),
              "smp::set_tensor_parallelism: neither the ", module.name(),
              " nor anything in it is routed, so nothing would be replaced; use the modules of "
              "smp::nn, or declare its class with SMP_MODULE");
}

}  // namespace smp
