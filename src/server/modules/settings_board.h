// server/modules/settings_board.h: train(), eval() and requires_grad_() as one process would see
// them: executions interleave on a rank, and each finds the switches of modules and parameters as
// its own program left them.
#pragma once

#include <memory>
#include <unordered_map>
#include <vector>

#include "server/modules/setting_flags.h"
#include "server/protocol/settings.h"

namespace smp::server {

/// Each execution has a View of all flags: while it runs, the modules are set to it, and what the
/// execution changes stays in its View. Threads: the rank's.
class SettingsBoard {
 public:
  using View = std::shared_ptr<const std::vector<char>>;
  using Subtree = SettingFlags::Subtree;

  /// Adds the modules and parameters of a model. Must be called between steps.
  void attach(torch::nn::Module& root);
  /// Removes a model that ends; its modules may have ended already. Numbers stay until the next
  /// step, because there may be views.
  void detach(const torch::nn::Module& root) noexcept { flags_.detach(root); }
  SettingFlags& flags() noexcept { return flags_; }
  const SettingFlags& flags() const noexcept { return flags_; }

  /// Makes the flags that the modules have now those with which every execution of the step begins.
  /// No View of an earlier step may be left.
  void begin_step();
  const View& base() const noexcept { return base_; }
  /// Makes the next microbatch begin with the flags that this one `left`, where microbatches run
  /// one at a time.
  void begin_microbatches_with(const View& left);
  /// Puts the modules back to the flags of the step's begin, because the step failed.
  void apply_begin_of_step() noexcept { apply(begin_of_step_); }
  /// Sets the modules to the flags of `view`. Earlier changes must have been taken up by note() or
  /// suspend().
  void apply(const View& view) noexcept;
  /// Notes that the execution of `view` leaves the thread. Its changes, anywhere or in `part` only,
  /// are put into `view` when another view is applied, if that comes before resume(): reading all
  /// flags of a model takes longer than a message, and a fiber that waits for one is mostly the
  /// next to run. `view` and `part` must live until then.
  void suspend(View& view, const Subtree* part) noexcept { suspended_ = {&view, part}; }
  /// Notes that the execution of `view` has the thread again.
  void resume(const View& view) noexcept;
  /// Puts what was changed since apply(view) into `view`: anywhere, or in `part` only.
  void note(View& view) noexcept;
  void note(View& view, const Subtree& part) noexcept;

  /// Returns the flags of `part` as they are now; plain if all are on.
  Settings read(const Subtree& part) const;
  /// Returns the flags of `part` as they are now, one by one, never as plain.
  Settings read_all(const Subtree& part) const;
  /// Returns base() with the settings of a caller for `part`.
  /// @throws UsageError  the caller's part has another number of flags.
  View view_of(const Subtree& part, const Settings& settings);
  /// Sets the flags of `part`; the next note() takes the changes up.
  /// @throws UsageError  the caller's part has another number of flags.
  void write(const Subtree& part, const Settings& settings);

 private:
  struct Suspended {
    View* view = nullptr;  // nullptr: nobody
    const Subtree* part = nullptr;
  };
  void settle() noexcept;
  void forget_views() noexcept;
  template <class Numbers>
  void note_in(View& view, const Numbers& numbers) noexcept;
  static void require_size(const Subtree& part, const Settings& settings);

  SettingFlags flags_;
  View base_ = std::make_shared<const std::vector<char>>();
  View begin_of_step_ = base_;
  View applied_ = base_;
  Suspended suspended_;
  /// The last view of a part and the settings of which it was made; callers rarely send others.
  struct Known {
    Settings settings;
    View view;
  };
  std::unordered_map<const Subtree*, Known> known_;
};

}  // namespace smp::server
