// server/recompute/replay_place.h: where a call stood in the program, so that it can run there
// again.
#pragma once

#include <ATen/core/Generator.h>
#include <c10/util/FunctionRef.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "server/modules/setting_flags.h"
#include "server/protocol/execution_modes.h"
#include "server/protocol/message.h"
#include "server/running/execution_scope.h"
#include "smp/detail/call.h"

namespace smp::server {

/// The modes, flags, keys and random numbers of a call that runs now. Threads: the rank's.
class ReplayPlace {
 public:
  /// @param module  whose call has just begun; nullptr: code of its caller, which shares the
  ///                caller's random numbers
  /// @param keep_random  whether code draws the same numbers again
  /// @param in_midst  a part of what `module` runs, not all of its call
  ReplayPlace(RoutedBase* module, bool keep_random, bool in_midst = false);

  /// Runs `code` as it ran there: no statistics are collected, and nobody takes turns. Does not
  /// suspend if `code` does not.
  void enter(c10::function_ref<void()> code) const;

 private:
  struct InProgram {
    ScopeServices& services;
    ExecutionIdentity identity;
    CallPosition position;
    std::uint64_t base_key;
    ExecutionSettings::View flags;
  };
  /// The switches of a module that is in no model of this step.
  class OwnFlags {
   public:
    explicit OwnFlags(torch::nn::Module& module);
    [[nodiscard]] std::vector<char> read() const;
    void set(const std::vector<char>& values);
    const std::vector<char>& of_call() const noexcept { return of_call_; }

   private:
    SettingFlags flags_;
    std::vector<char> of_call_;
  };
  void enter_program(c10::function_ref<void()> code) const;

  RoutedBase* const module_;
  const ExecutionModes modes_ = ExecutionModes::capture();
  std::optional<InProgram> program_;  // unless it runs outside of steps
  std::shared_ptr<OwnFlags> own_flags_;
  at::Generator random_;  // of the CPU; undefined: its numbers are keyed
  at::Generator random_of_device_;
};

}  // namespace smp::server
