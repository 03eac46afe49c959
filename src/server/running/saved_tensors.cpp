// server/running/saved_tensors.cpp: an engine that differs from LibTorch's in one virtual
// function: C++ has no other way to the hooks that every new SavedVariable asks for.
#include "server/running/saved_tensors.h"

#include <torch/csrc/autograd/engine.h>

#include <memory>
#include <utility>

#include "base/check.h"
#include "base/fiber_local.h"
#include "base/keep_until_exit.h"
#include "server/running/saved_versions.h"

namespace smp::server {
namespace {

const base::FiberLocal<SavedTensorTaker>& current_taker() {
  static const base::FiberLocal<SavedTensorTaker> taker;
  return taker;
}

class HookedEngine final : public torch::autograd::Engine {
 public:
  std::unique_ptr<torch::autograd::SavedVariableHooks> get_default_saved_variable_hooks() override {
    if (auto* const taker = current_taker().get()) return taker->next();
    return hooks_of_written_tensors();
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

}  // namespace

void hook_saved_tensors() {
  using torch::autograd::Engine;
  if (&Engine::get_default_engine() != &Engine::get_base_engine()) return;
  torch::autograd::set_default_engine_stub(&hooked_engine);
}

SavedTensorScope::SavedTensorScope(SavedTensorTaker* taker) : outer_(current_taker().get()) {
  if (taker != nullptr) {
    hook_saved_tensors();
    SMP_REQUIRE_AS(UnsupportedError,
                   &torch::autograd::Engine::get_default_engine() == &hooked_engine(),
                   "activation checkpointing needs LibTorch's own autograd engine, but another "
                   "library has brought one of its own (LibTorch's for Python?)");
  }
  current_taker().set(taker);
}

SavedTensorScope::~SavedTensorScope() { current_taker().set(outer_); }

}  // namespace smp::server
