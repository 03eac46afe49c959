// alive/spoken_mark.h: which process says an error that several end by before they are ranks: a
// wrong flag, a missing file. They see no board (alive/pulse.h) yet, and a launcher ends all of
// them as soon as one has ended.
#pragma once

#include <string>

namespace smp::base {

/// The mark that a text has been said on this machine, in the launcher's folder of the job, which
/// is gone with the job. Without a launcher, or one that has no such folder, everybody speaks;
/// there ranks above 0 wait a second first, in which the launcher ends them as a rule.
class SpokenMark {
 public:
  /// Takes the turn to say `text`. Waits while another process says it, 5 s at most; and where the
  /// job has several machines, each with a folder of its own, a second for rank 0.
  explicit SpokenMark(const std::string& text);
  ~SpokenMark();
  SpokenMark(const SpokenMark&) = delete;
  SpokenMark& operator=(const SpokenMark&) = delete;

  /// True if another process of this machine has said the text.
  bool is_set() const noexcept { return set_; }
  /// Tells the others that this process has said it.
  void set() noexcept;

 private:
  bool take_turn() noexcept;
  void give_turn() noexcept;

  std::string path_;  // empty: there is no folder
  int file_ = -1;     // locked by whoever speaks
  bool set_ = false;
};

}  // namespace smp::base
