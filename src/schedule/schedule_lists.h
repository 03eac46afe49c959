// schedule/schedule_lists.h: a pipeline schedule as data: for each rank, what it does in which
// order. Plain data and its text; generators, the checker and what the lists mean when a step runs
// are in list_generators.h, list_check.h and list_schedule.h. docs/schedules.md.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace smp::schedule {

/// The work of a rank on one microbatch.
enum class ActionKind : std::uint8_t {
  kForward,         ///< F
  kBackward,        ///< B: the whole backward
  kInputGradient,   ///< I: the part of the backward that the rank before waits for
  kWeightGradient,  ///< W: the rest, which nobody waits for
};

struct Action {
  ActionKind kind = ActionKind::kForward;
  int microbatch = 0;

  /// True if nothing of the microbatch is kept on the rank after this action.
  bool ends_microbatch() const noexcept {
    return kind == ActionKind::kBackward || kind == ActionKind::kWeightGradient;
  }
  /// Returns the action as text, as in "F3".
  [[nodiscard]] std::string text() const;
  bool operator==(const Action&) const = default;
};

/// The text, one line a rank; empty lines and what follows a # are passed over:
///
///     smp-schedule 1
///     microbatches 8
///     rank 0: F0 F1 B0 F2 B1 ...
///     rank 1: F0 B0 F1 B1 ...
///
/// Nothing here says that the lists make sense: check_lists() does.
struct ScheduleLists {
  int microbatches = 0;                    ///< of a step, numbered from 0
  std::vector<std::vector<Action>> ranks;  ///< by pp_rank

  [[nodiscard]] int pp_size() const noexcept { return static_cast<int>(ranks.size()); }
  /// True if some backward is in two parts.
  [[nodiscard]] bool splits_backward() const noexcept;
  /// Returns for each rank the most microbatches whose forward has begun and whose backward is not
  /// over, if the rank follows its list.
  [[nodiscard]] std::vector<int> most_alive() const;

  [[nodiscard]] std::string to_text() const;
  /// Parses the text of lists.
  /// @param name  leads the messages: the path of the file
  /// @throws UsageError  not this format or version, a word that is no action, a rank that is told
  ///                     twice or left out; names the line
  [[nodiscard]] static ScheduleLists from_text(const std::string& text, const std::string& name);

  /// Reads lists from a file: alone, or quoted in JSON (as plan.json of a run has them), from
  /// "smp-schedule on, with \n between lines.
  /// @throws UsageError  as from_text(), or the file cannot be read
  [[nodiscard]] static ScheduleLists read(const std::string& path);
  /// Writes lists to a file. @throws ResourceError  the file cannot be written
  void write(const std::string& path) const;

  bool operator==(const ScheduleLists&) const = default;
};

}  // namespace smp::schedule
