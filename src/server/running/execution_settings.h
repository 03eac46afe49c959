// server/running/execution_settings.h: what the modules say while an execution runs.
#pragma once

#include "server/modules/settings_board.h"
#include "server/running/body_settings.h"
#include "smp/detail/call.h"

namespace smp::server {

/// The flags (training, requires_grad) of all modules as one execution has them. Threads: the
/// rank's.
class ExecutionSettings {
 public:
  using View = SettingsBoard::View;

  /// It begins with the flags of the step's begin.
  /// @param board   outlives this object
  /// @param module  the module that runs, of whose part alone it changes flags; nullptr for a body,
  ///                which may change all
  ExecutionSettings(SettingsBoard& board, RoutedBase* module);
  ExecutionSettings(const ExecutionSettings&) = delete;
  ExecutionSettings& operator=(const ExecutionSettings&) = delete;

  const View& view() const noexcept { return view_; }
  /// Sets the modules to these flags.
  void apply() noexcept { board_.apply(view_); }
  /// Sets the flags with which the execution begins, instead of those of the step's begin. Must be
  /// called before anything runs.
  void set(const View& view);
  /// Reads the flags of the modules as they are now, and returns them.
  const View& note() noexcept;
  /// Notes that user code has run although an OwnCodeOnly lives, so flags are read again.
  void note_user_code() noexcept { noted_ = false; }
  /// Notes that the execution leaves the thread.
  void suspend() noexcept;
  /// Notes that it has the thread again.
  void resume() noexcept { board_.resume(view_); }

  // Of a body.

  /// The flags that the body has switched, for the check at its end.
  const BodySettings& body() const noexcept { return body_; }
  /// Notes that the body calls `module`: reads all flags before its first call, since it may have
  /// switched any, and before later calls only those of the module that is called.
  void body_call_begins(const RoutedBase& module);
  void body_call_ends(const RoutedBase& module) noexcept;

 private:
  friend class OwnCodeOnly;

  const SettingsBoard::Subtree& part_of(const RoutedBase& module) const;

  SettingsBoard& board_;
  View view_;
  const SettingsBoard::Subtree* const part_;  // what it may change; nullptr: everything
  bool own_code_only_ = false;                // OwnCodeOnly
  bool noted_ = false;                        // view_, since that began
  BodySettings body_;
};

/// While it lives, no user code runs in the execution, so no flag can be switched: when the fiber
/// leaves the thread, the flags are read once, and not again. A backward pass leaves the thread for
/// every remote call, and each time every flag of the model would be read.
class OwnCodeOnly {
 public:
  /// @param settings  those of the execution; nullptr: nothing is done
  explicit OwnCodeOnly(ExecutionSettings* settings) noexcept;
  ~OwnCodeOnly();
  OwnCodeOnly(const OwnCodeOnly&) = delete;
  OwnCodeOnly& operator=(const OwnCodeOnly&) = delete;

 private:
  ExecutionSettings* const settings_;
  const bool before_;
};

}  // namespace smp::server
