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

/// An execution has a View of all flags; while it runs, the modules have them, and what it changes
/// stays in its View. Threads: the rank's.
class SettingsBoard {
 public:
  using View = std::shared_ptr<const std::vector<char>>;
  using Subtree = SettingFlags::Subtree;

  /// Adds the modules and parameters of a model. Between steps.
  void attach(torch::nn::Module& root);
  /// The model ends, and its modules may. Numbers stay until the next step: there may be views.
  void detach(const torch::nn::Module& root) noexcept { flags_.detach(root); }
  SettingFlags& flags() noexcept { return flags_; }
  const SettingFlags& flags() const noexcept { return flags_; }

  /// What the modules say now is what every execution of the step begins with. No View is older.
  void begin_step();
  const View& base() const noexcept { return base_; }
  /// Microbatches run one at a time: the next begins with what this one `left`.
  void begin_microbatches_with(const View& left);
  /// A step that failed leaves what it found.
  void apply_begin_of_step() noexcept { apply(begin_of_step_); }
  /// Makes `view` what the modules say. What was changed before, note() or suspend() has seen.
  void apply(const View& view) noexcept;
  /// The execution of `view` leaves the thread. What it changed, anywhere or in `part` only, is put
  /// into `view` when another view is applied, if that comes before resume(): reading all flags of
  /// a model takes longer than a message, and who waits for one mostly goes on himself. Both
  /// outlive that.
  void suspend(View& view, const Subtree* part) noexcept { suspended_ = {&view, part}; }
  /// It has the thread again.
  void resume(const View& view) noexcept;
  /// Puts what was changed since apply(view) into `view`: anywhere, or in `part` only.
  void note(View& view) noexcept;
  void note(View& view, const Subtree& part) noexcept;

  /// What the modules of `part` say now.
  Settings read(const Subtree& part) const;
  /// As read(), flag by flag, never plain.
  Settings read_all(const Subtree& part) const;
  /// base() with the settings of a caller for `part`.
  /// @throws UsageError  the caller's part has another number of flags.
  View view_of(const Subtree& part, const Settings& settings);
  /// Sets the modules of `part`; note() sees it.
  /// @throws UsageError  as view_of().
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
  /// The last view of each part; callers rarely change their minds.
  struct Known {
    Settings settings;
    View view;
  };
  std::unordered_map<const Subtree*, Known> known_;
};

}  // namespace smp::server
