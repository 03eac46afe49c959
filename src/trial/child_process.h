// trial/child_process.h: work whose traces in memory must not be seen afterwards, done in a copy of
// this process.
#pragma once

#include <functional>
#include <optional>
#include <string>

namespace smp {

struct ChildAnswer {
  std::optional<std::string> answer;  ///< what `work` returned
  std::string fault;                  ///< why there is none: "ended by signal 11 (...)"
};

/// Runs `work` in a forked copy of this process, on one thread, and waits for it. What `work`
/// prints is dropped, what it reads of files that are open to be read is not missing here,
/// standard input is empty there unless it is a file, and it must not talk to other ranks. The
/// child is killed after `seconds`, and where it sleeps without computing after 10 s, or half of
/// `seconds`.
[[nodiscard]] ChildAnswer in_child_process(const std::function<std::string()>& work,
                                           double seconds);

}  // namespace smp
