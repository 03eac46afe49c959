// module/placement.cpp: the scope that routed modules note down when they are made. It belongs to
// the fiber: ranks of one process build their models by turns.
#include "smp/placement.h"

#include "base/fiber_local.h"
#include "smp/detail/call.h"
#include "smp/detail/tensor_parallelism.h"

namespace smp {
namespace {

const base::FiberLocal<const partition>& innermost() {
  static const base::FiberLocal<const partition> scope;
  return scope;
}

}  // namespace

partition::partition(int pp_rank) : pp_rank_(pp_rank), outer_(innermost().get()) {
  innermost().set(this);
}
partition::~partition() { innermost().set(outer_); }

RoutedBase::RoutedBase() {
  if (const auto* scope = innermost().get()) smp_pin = scope->pp_rank_;
  if (const auto wanted = tensor_parallelism::wanted()) smp_tensor_parallel = *wanted;
}
RoutedBase::~RoutedBase() = default;
StandIn::~StandIn() = default;
CallWrapper::~CallWrapper() = default;

}  // namespace smp
