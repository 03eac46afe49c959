// server/running/body_settings.h: what the body of one microbatch does to the settings.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "server/modules/settings_board.h"

namespace smp::server {

/// Follows the flags (training, requires_grad) that a body switches: looks at each call that it
/// makes, and judges at its end. Threads: the rank's.
class BodySettings {
 public:
  using View = SettingsBoard::View;

  /// Notes that the body calls a module while the flags are as in `view`.
  void call_begins(const View& view);
  /// Notes that this call has ended. Flags of `part`, those of the called module, that differ from
  /// before were switched by the module, not by the body.
  void call_ends(const View& view, const SettingFlags::Subtree& part);
  bool called() const noexcept { return first_call_ != nullptr; }

  /// True if a microbatch that runs after this one would begin with other flags than one that runs
  /// at the same time. The later one may set these flags itself before it uses them, which cannot
  /// be known.
  bool changes_the_next(const View& begin, const View& end) const;
  /// Returns the number of a flag that the body itself switched after its first call of a module
  /// and left so; nullopt if there is none.
  [[nodiscard]] std::optional<std::size_t> late_switch(const View& begin, const View& end) const;
  /// Checks late_switch(). @throws UsageError  in one process the next microbatch would begin with
  /// other flags than those with which it was started.
  void require_repeatable(const SettingFlags& flags, const View& begin, const View& end) const;

 private:
  bool leaves(std::size_t flag, const View& begin, const View& end) const;

  View first_call_;
  View before_call_;
  std::vector<char> by_modules_;
};

}  // namespace smp::server
