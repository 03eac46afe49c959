// server/recompute/replay_place.cpp: an execution in an execution.
#include "server/recompute/replay_place.h"

#include <string_view>
#include <utility>

#include "base/check.h"
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

std::uint64_t key_of_others(std::uint64_t base_key, const CallPosition& position) {
  const auto key = base::mix_key(base::mix_key(base_key, position.random_key), position.ordinal);
  return base::mix_key(key, std::string_view("<again>"));
}

/// The flags of the modules as they are now: those of `module` and all below it, or all.
ExecutionSettings::View flags_of(ExecutionScope& scope, RoutedBase* module) {
  if (module == nullptr) return scope.settings().note();
  auto& board = scope.services().settings;
  const auto& part = board.flags().subtree(module->smp_module());
  return board.view_of(part, board.read(part));
}

}  // namespace

ReplayPlace::OwnFlags::OwnFlags(torch::nn::Module& module) {
  flags_.attach(module);
  of_call_ = read();
}

std::vector<char> ReplayPlace::OwnFlags::read() const {
  std::vector<char> values;
  for (std::uint32_t i = 0; i < flags_.size(); ++i) values.push_back(flags_.get(i) ? 1 : 0);
  return values;
}

void ReplayPlace::OwnFlags::set(const std::vector<char>& values) {
  for (std::uint32_t i = 0; i < values.size(); ++i) flags_.set(i, values[i] != 0);
}

/// A module of no model runs as code of its caller does.
ReplayPlace::ReplayPlace(RoutedBase* module, bool keep_random, bool in_midst)
    : module_(module != nullptr && module->smp_place.placed() && !in_midst ? module : nullptr) {
  auto* const scope = ExecutionScope::current();
  if (scope != nullptr) {
    program_.emplace(InProgram{scope->services(), scope->identity(),
                               module_ == nullptr ? scope->position() : scope->position_of_call(),
                               scope->base_key(), flags_of(*scope, module_)});
  }
  if (module != nullptr && (scope == nullptr || !module->smp_place.placed())) {
    own_flags_ = std::make_shared<OwnFlags>(module->smp_module());
  }
  // Modules in a program have generators of their own.
  if (!keep_random || (scope != nullptr && module_ != nullptr)) return;
  random_ = copied(&base::default_generator());
  random_of_device_ = copied(base::device_generator());
}

void ReplayPlace::enter(c10::function_ref<void()> code) const {
  const GeneratorScope random(&base::default_generator(), random_);
  const GeneratorScope random_of_device(base::device_generator(), random_of_device_);
  struct FlagsScope {
    explicit FlagsScope(OwnFlags* own) : flags(own) {
      if (flags == nullptr) return;
      now = flags->read();
      flags->set(flags->of_call());
    }
    ~FlagsScope() {
      if (flags != nullptr) flags->set(now);
    }
    OwnFlags* flags;
    std::vector<char> now;
  };
  const auto in_modes = [&] {
    const FlagsScope flags(own_flags_.get());
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
  SMP_REQUIRE(outer != nullptr,
              "activation checkpointing: the backward of a call that was made in a step runs after "
              "the step; run it in the body");
  outer->settings().note();
  struct Back {
    ExecutionScope* outer;
    ~Back() { outer->settings().apply(); }
  } const back{outer};
  ExecutionScope scope(program_->services, program_->identity, program_->position,
                       program_->base_key, /*replays=*/true);
  scope.settings().set(program_->flags);
  if (module_ == nullptr) {
    // Code that draws other numbers the second time has a stream of its own, so that these, and
    // those of whoever draws next, do not depend on when it runs.
    std::optional<base::RandomScope> others;
    if (!random_.defined()) others.emplace(key_of_others(program_->base_key, program_->position));
    return code();
  }
  const CallScope call(scope, ModuleId{module_->smp_place.index});
  code();
}

}  // namespace smp::server
