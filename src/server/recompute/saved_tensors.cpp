// server/recompute/saved_tensors.cpp: an engine that differs from LibTorch's in one virtual
// function: C++ has no other way to the hooks that every new SavedVariable asks for.
#include "server/recompute/saved_tensors.h"

#include <torch/csrc/autograd/engine.h>

#include <memory>
#include <utility>

#include "base/fiber_local.h"
#include "base/keep_until_exit.h"

namespace smp::server {
namespace {

const base::FiberLocal<SavedTensorTaker>& current_taker() {
  static const base::FiberLocal<SavedTensorTaker> taker;
  return taker;
}

class HookedEngine final : public torch::autograd::Engine {
 public:
  std::unique_ptr<torch::autograd::SavedVariableHooks> get_default_saved_variable_hooks() override {
    auto* const taker = current_taker().get();
    return taker == nullptr ? nullptr : taker->next();
  }
};

/// Never destroyed: graphs outlive what made them.
torch::autograd::Engine& hooked_engine() {
  static auto& engine = []() -> HookedEngine& {
    auto made = std::make_unique<HookedEngine>();
    auto& result = *made;
    base::keep_until_exit(std::move(made));
    return result;
  }();
  return engine;
}

void install() {
  static const bool once = [] {
    torch::autograd::set_default_engine_stub(&hooked_engine);
    return true;
  }();
  static_cast<void>(once);
}

}  // namespace

SavedTensorScope::SavedTensorScope(SavedTensorTaker* taker) : outer_(current_taker().get()) {
  if (taker != nullptr) install();
  current_taker().set(taker);
}

SavedTensorScope::~SavedTensorScope() { current_taker().set(outer_); }

}  // namespace smp::server
