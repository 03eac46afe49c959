// server/running/body_settings.h: what the body of one microbatch does to the settings.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "server/modules/settings_board.h"

namespace smp::server {

/// Seen at the calls that the body makes, judged at its end. Threads: the rank's.
class BodySettings {
 public:
  using View = SettingsBoard::View;

  /// The body calls a module; `view` is what it finds.
  void call_begins(const View& view);
  /// What modules changed themselves is not the body's doing.
  void call_ends(const View& view, const SettingFlags::Subtree& part);
  bool called() const noexcept { return first_call_ != nullptr; }

  /// Whether a microbatch that runs after this one begins with switches that one which runs at the
  /// same time does not. It may throw them itself before it uses them: nobody knows.
  bool changes_the_next(const View& begin, const View& end) const;
  /// A switch that the body itself threw after its first call of a module, and left so.
  [[nodiscard]] std::optional<std::size_t> late_switch(const View& begin, const View& end) const;
  /// @throws UsageError  the next microbatch would begin in other modes than it was started with.
  void require_repeatable(const SettingFlags& flags, const View& begin, const View& end) const;

 private:
  bool leaves(std::size_t flag, const View& begin, const View& end) const;

  View first_call_;
  View before_call_;
  std::vector<char> by_modules_;
};

}  // namespace smp::server
