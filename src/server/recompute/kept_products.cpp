// server/recompute/kept_products.cpp: kernels of products under a dispatch key that nothing else
// uses. All other operators pass it by, and so do products of fibers that have not included it.
#include "server/recompute/kept_products.h"

#include <torch/library.h>

#include <utility>

#include "base/check.h"
#include "module/products.h"
#include "server/values/clone_on_write.h"

namespace smp::server {
namespace {

/// Below autograd, and above what computes.
constexpr auto kProductKey = c10::DispatchKey::CustomRNGKeyId;

const base::FiberLocal<KeptProducts>& running_products() {
  static const base::FiberLocal<KeptProducts> products;
  return products;
}

void run_product(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard once(kProductKey);
  if (auto* const products = running_products().get()) return products->run(op, *stack);
  op.callBoxed(stack);
}

c10::IValue copy_of(const c10::IValue& value) {
  if (!value.isTensor() || !value.toTensor().defined()) return value;
  return clone_on_write(value.toTensor());
}

torch::jit::Stack copies_of(const torch::jit::Stack& values, std::size_t first) {
  torch::jit::Stack copies;
  for (std::size_t i = first; i < values.size(); ++i) copies.push_back(copy_of(values[i]));
  return copies;
}

}  // namespace

KeptProducts::Scope::Scope(KeptProducts* products, bool replays)
    : products_(running_products(), products), include_(kProductKey) {
  if (products == nullptr) return;
  outer_replays_ = std::exchange(products->replays_, replays);
  products->next_ = 0;
}

KeptProducts::Scope::~Scope() {
  if (auto* const products = running_products().get()) products->replays_ = outer_replays_;
}

void KeptProducts::run(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  const auto arguments = op.schema().arguments().size();
  const auto first = stack.size() - arguments;
  if (!replays_) {
    op.callBoxed(&stack);
    results_.push_back({op.operator_name(), copies_of(stack, first)});
    return;
  }
  const bool known = next_ < results_.size() && results_[next_].op == op.operator_name();
  SMP_REQUIRE(known, name_,
              ": activation checkpointing runs a call twice, and the second time it did something "
              "else: product number ",
              next_, " is ", op.operator_name().name, ", and was ",
              next_ < results_.size() ? results_[next_].op.name : "not there",
              "; a call must depend on its arguments, its parameters and its random numbers alone");
  stack.resize(first);
  for (auto& value : copies_of(results_[next_++].values, 0)) stack.push_back(std::move(value));
}

}  // namespace smp::server

TORCH_LIBRARY_IMPL(_, CustomRNGKeyId, library) {
  library.fallback(torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(aten, CustomRNGKeyId, library) {
  for (const char* name : smp::module::kProducts) {
    library.impl(name, torch::CppFunction::makeFromBoxedFunction<&smp::server::run_product>());
  }
}
