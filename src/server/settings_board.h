// server/settings_board.h: train(), eval() and requires_grad_() as one process would see them:
// executions interleave on a rank, and each finds the switches of modules and parameters as its own
// program left them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "server/settings.h"

namespace torch::nn {
class Module;
}

namespace smp::server {

/// The training flag of every module and the requires_grad flag of every parameter of the models of
/// one rank, by number. An execution has a View of all flags; while it runs, the modules have them,
/// and what it changes stays in its View. Threads: the rank's.
class SettingsBoard {
 public:
  using View = std::shared_ptr<const std::vector<char>>;
  /// Numbers of flags.
  using Subtree = std::vector<std::uint32_t>;

  /// Adds the modules and parameters of a model. Between steps.
  void attach(torch::nn::Module& root);
  /// The model ends, and its modules may.
  void detach(const torch::nn::Module& root) noexcept;

  /// Of `module` and everything below it; empty for one that was not attached. Found once.
  const Subtree& subtree(const torch::nn::Module& module) {
    return &module == last_module_ ? *last_subtree_ : find_subtree(module);
  }

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

  /// Of the flag of `parameter`, the same on all ranks; nullopt: of no model.
  [[nodiscard]] std::optional<std::uint32_t> number_of(const at::Tensor& parameter) const;
  /// Hash of which modules train now. Between steps.
  std::uint64_t training_key() const noexcept;

  /// "module 'encoder.drop' is in evaluation mode", "parameter 'head.weight' is frozen".
  std::string describe(std::size_t flag, bool on) const;
  std::size_t size() const noexcept { return flags_.size(); }

 private:
  struct Flag {
    const torch::nn::Module* root = nullptr;
    torch::nn::Module* module = nullptr;  // either a module or a parameter; neither: it is gone
    at::Tensor parameter;
    std::string name;
  };
  /// Where a flag can be read at once; of those that are not gone. One beside the other: all are
  /// read often.
  struct Place {
    const bool* on;
    std::uint32_t number;
  };
  struct Suspended {
    View* view = nullptr;  // nullptr: nobody
    const Subtree* part = nullptr;
  };
  void settle() noexcept;
  bool says(const View& view) const noexcept;
  void find_all();
  const Subtree& find_subtree(const torch::nn::Module& module);
  void add_module(torch::nn::Module& module, const torch::nn::Module& root,
                  const std::string& path);
  void list(const torch::nn::Module& module, std::vector<char>& seen, Subtree& part) const;
  bool get(std::uint32_t flag) const noexcept;
  void set(std::uint32_t flag, bool on) noexcept;
  template <class Numbers>
  void note_in(View& view, const Numbers& numbers) noexcept;
  static void require_size(const Subtree& part, const Settings& settings);

  std::vector<torch::nn::Module*> roots_;
  bool outdated_ = false;  // a model is gone
  std::vector<Flag> flags_;
  std::vector<Place> places_;
  std::vector<std::uint32_t> without_place_;  // parameters that have never required a gradient
  std::unordered_map<const void*, std::uint32_t> numbers_;  // by Module or TensorImpl
  std::unordered_map<const torch::nn::Module*, Subtree> subtrees_;
  const torch::nn::Module* last_module_ = nullptr;  // the last asked for: a call asks often
  const Subtree* last_subtree_ = nullptr;
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

/// What the body of one microbatch does to the settings: seen at its calls, judged at its end.
class BodySettings {
 public:
  using View = SettingsBoard::View;

  /// The body calls a module; `view` is what it finds.
  void call_begins(const View& view);
  /// What modules changed themselves is not the body's doing.
  void call_ends(const View& view, const SettingsBoard::Subtree& part);
  bool called() const noexcept { return first_call_ != nullptr; }

  /// Whether a microbatch that runs after this one begins with switches that one which runs at the
  /// same time does not. It may throw them itself before it uses them: nobody knows.
  bool changes_the_next(const View& begin, const View& end) const;
  /// A switch that the body itself threw after its first call of a module, and left so.
  [[nodiscard]] std::optional<std::size_t> late_switch(const View& begin, const View& end) const;
  /// @throws UsageError  the next microbatch would begin in other modes than it was started with.
  void require_repeatable(const SettingsBoard& board, const View& begin, const View& end) const;

 private:
  bool leaves(std::size_t flag, const View& begin, const View& end) const;

  View first_call_;
  View before_call_;
  std::vector<char> by_modules_;
};

}  // namespace smp::server
