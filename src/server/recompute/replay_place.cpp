// server/recompute/replay_place.cpp: an execution in an execution.
#include "server/recompute/replay_place.h"

#include <utility>

#include "base/random.h"

namespace smp::server {
namespace {

/// While it lives, code draws from a copy of `state`; an undefined one changes nothing.
class GeneratorScope {
 public:
  GeneratorScope(at::Generator* place, const at::Generator& state) : place_(place) {
    if (place_ == nullptr || !state.defined()) return;
    previous_ = std::exchange(*place_, state.clone());
  }
  ~GeneratorScope() {
    if (previous_.defined()) *place_ = std::move(previous_);
  }
  GeneratorScope(const GeneratorScope&) = delete;
  GeneratorScope& operator=(const GeneratorScope&) = delete;

 private:
  at::Generator* const place_;
  at::Generator previous_;
};

at::Generator copied(at::Generator* generator) {
  return generator == nullptr || !generator->defined() ? at::Generator() : generator->clone();
}

/// The flags of the modules as they are now: those of `module` and all below it, or all.
ExecutionSettings::View flags_of(ExecutionScope& scope, RoutedBase* module) {
  if (module == nullptr) return scope.settings().note();
  auto& board = scope.services().settings;
  const auto& part = board.flags().subtree(module->smp_module());
  return board.view_of(part, board.read(part));
}

}  // namespace

ReplayPlace::ReplayPlace(RoutedBase* module, bool keep_random) : module_(module) {
  auto* const scope = ExecutionScope::current();
  if (scope != nullptr) {
    program_.emplace(InProgram{scope->services(), scope->identity(),
                               module == nullptr ? scope->position() : scope->position_of_call(),
                               scope->base_key(), flags_of(*scope, module)});
  }
  // Modules in a program have generators of their own.
  if (!keep_random || (scope != nullptr && module != nullptr)) return;
  random_ = copied(&base::default_generator());
  random_of_device_ = copied(base::device_generator());
}

void ReplayPlace::enter(c10::function_ref<void()> code) const {
  const GeneratorScope random(&base::default_generator(), random_);
  const GeneratorScope random_of_device(base::device_generator(), random_of_device_);
  const auto in_modes = [&] {
    const ModesScope modes(modes_);
    code();
  };
  if (program_) {
    enter_program(in_modes);
  } else {
    in_modes();
  }
}

void ReplayPlace::enter_program(c10::function_ref<void()> code) const {
  auto* const outer = ExecutionScope::current();
  if (outer != nullptr) outer->settings().note();
  struct Back {
    ExecutionScope* outer;
    ~Back() {
      if (outer != nullptr) outer->settings().apply();
    }
  } const back{outer};
  ExecutionScope scope(program_->services, program_->identity, program_->position,
                       program_->base_key, /*replays=*/true);
  scope.settings().set(program_->flags);
  if (module_ == nullptr) return code();
  const CallScope call(scope, ModuleId{module_->smp_place.index});
  code();
}

}  // namespace smp::server
