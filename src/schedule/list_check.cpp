// schedule/list_check.cpp: reads each list once, then lets all ranks follow theirs.
#include "schedule/list_check.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "base/check.h"

namespace smp::schedule {
namespace {

using base::concat;
using enum ActionKind;

std::string at(int rank, std::size_t index, const Action& action) {
  return concat("rank ", rank, ", position ", index + 1, ", ", action.text(), ": ");
}

/// The actions that one rank has done with one microbatch.
struct Done {
  bool forward = false, backward = false, input = false, weight = false;

  bool& of(ActionKind kind) noexcept {
    switch (kind) {
      case kForward:
        return forward;
      case kBackward:
        return backward;
      case kInputGradient:
        return input;
      case kWeightGradient:
        return weight;
    }
    return forward;
  }
};

/// Checks one rank's list by itself.
class RankCheck {
 public:
  RankCheck(const ScheduleLists& lists, int rank, int most_alive)
      : actions_(lists.ranks[static_cast<std::size_t>(rank)]),
        rank_(rank),
        most_alive_(most_alive),
        done_(static_cast<std::size_t>(lists.microbatches)) {}

  std::optional<std::string> run() {
    for (std::size_t i = 0; i < actions_.size(); ++i) {
      const auto wrong = wrong_with(actions_[i]);
      if (!wrong.empty()) return at(rank_, i, actions_[i]) + wrong;
      take(actions_[i]);
    }
    return missing();
  }

 private:
  /// Returns what is wrong with the action, or an empty text.
  std::string wrong_with(const Action& action) {
    const int last = static_cast<int>(done_.size()) - 1;
    if (action.microbatch > last) {
      return concat("there is no such microbatch; the last one is ", last);
    }
    Done& done = done_[static_cast<std::size_t>(action.microbatch)];
    if (done.of(action.kind)) return "it was done before";
    if (action.kind == kForward) return wrong_with_forward(action.microbatch);
    if (!done.forward) return concat("F", action.microbatch, " must come first");
    if (action.kind == kBackward && (done.input || done.weight)) {
      return concat("its backward is in parts already, I", action.microbatch, " came before");
    }
    if (action.kind != kBackward && done.backward) {
      return concat("B", action.microbatch, " was its whole backward");
    }
    if (action.kind == kWeightGradient && !done.input) {
      return concat("I", action.microbatch, " must come first");
    }
    return {};
  }

  std::string wrong_with_forward(int microbatch) const {
    if (highest_end_.microbatch > microbatch) {
      return concat("it would wait for ", highest_end_.text(),
                    ", which stands before it: the end of a higher microbatch; put F", microbatch,
                    " before ", highest_end_.text());
    }
    if (most_alive_ > 0 && alive_ >= most_alive_) {
      return concat("microbatches kept on the rank would be ", alive_ + 1, ", and ", most_alive_,
                    " is the most");
    }
    return {};
  }

  void take(const Action& action) {
    done_[static_cast<std::size_t>(action.microbatch)].of(action.kind) = true;
    if (action.kind == kForward) ++alive_;
    if (!action.ends_microbatch()) return;
    --alive_;
    if (action.microbatch > highest_end_.microbatch) highest_end_ = action;
  }

  std::optional<std::string> missing() const {
    for (std::size_t i = 0; i < done_.size(); ++i) {
      const Done& done = done_[i];
      const char* what = !done.forward                   ? "F"
                         : done.input && !done.weight    ? "W"
                         : !done.input && !done.backward ? "B"
                                                         : nullptr;
      if (what == nullptr) continue;
      return concat("rank ", rank_, ", position ", actions_.size() + 1, ", end of its list: ", what,
                    i, " is missing");
    }
    return std::nullopt;
  }

  const std::vector<Action>& actions_;
  const int rank_;
  const int most_alive_;
  std::vector<Done> done_;  // by microbatch
  int alive_ = 0;
  Action highest_end_{kBackward, -1};
};

/// Lets all ranks follow their lists, each until an action needs one of a neighbour that is not
/// done.
class ChainRun {
 public:
  explicit ChainRun(const ScheduleLists& lists)
      : lists_(lists),
        next_(lists.ranks.size(), 0),
        forward_(lists.ranks.size(), std::vector<bool>(lists.microbatches)),
        backward_(forward_) {}

  std::optional<std::string> run() {
    bool moved = true;
    while (moved) {
      moved = false;
      for (int rank = 0; rank < lists_.pp_size(); ++rank) moved |= go_on(rank);
    }
    for (int rank = 0; rank < lists_.pp_size(); ++rank) {
      if (const Action* action = next(rank)) return stopped(rank, *action);
    }
    return std::nullopt;
  }

 private:
  /// Returns the action at which `rank` stands; nullptr at its end.
  const Action* next(int rank) const {
    const auto& actions = lists_.ranks[static_cast<std::size_t>(rank)];
    const auto index = next_[static_cast<std::size_t>(rank)];
    return index < actions.size() ? &actions[index] : nullptr;
  }

  /// Lets `rank` follow its list as far as it can. Returns true if it did something.
  bool go_on(int rank) {
    bool moved = false;
    for (const Action* action = next(rank); action && needs(rank, *action).empty();
         action = next(rank)) {
      if (action->kind == kForward) forward_[rank][action->microbatch] = true;
      if (gives_gradient(*action)) backward_[rank][action->microbatch] = true;
      ++next_[static_cast<std::size_t>(rank)];
      moved = true;
    }
    return moved;
  }

  static bool gives_gradient(const Action& action) {
    return action.kind == kBackward || action.kind == kInputGradient;
  }

  /// Returns what must be done on a neighbour first; empty: nothing.
  std::string needs(int rank, const Action& action) const {
    if (action.kind == kForward && rank > 0 && !forward_[rank - 1][action.microbatch]) {
      return concat("F", action.microbatch, " of rank ", rank - 1);
    }
    if (gives_gradient(action) && rank + 1 < lists_.pp_size() &&
        !backward_[rank + 1][action.microbatch]) {
      return concat("the backward of microbatch ", action.microbatch, " of rank ", rank + 1);
    }
    return {};
  }

  std::string stopped(int rank, const Action& action) const {
    std::string text = at(rank, next_[static_cast<std::size_t>(rank)], action) +
                       "the ranks wait for each other: it needs " + needs(rank, action);
    for (int other = 0; other < lists_.pp_size(); ++other) {
      const Action* waits = next(other);
      if (other == rank || waits == nullptr) continue;
      text += concat("; rank ", other, " stands at position ",
                     next_[static_cast<std::size_t>(other)] + 1, ", ", waits->text());
    }
    return text;
  }

  const ScheduleLists& lists_;
  std::vector<std::size_t> next_;            // by rank
  std::vector<std::vector<bool>> forward_;   // by rank, by microbatch: done
  std::vector<std::vector<bool>> backward_;  // as far as the rank before needs it
};

}  // namespace

std::optional<std::string> first_violation(const ScheduleLists& lists, int most_alive) {
  for (int rank = 0; rank < lists.pp_size(); ++rank) {
    if (auto wrong = RankCheck(lists, rank, most_alive).run()) return wrong;
  }
  return ChainRun(lists).run();
}

void check_lists(const ScheduleLists& lists, const std::string& name, int most_alive) {
  const auto wrong = first_violation(lists, most_alive);
  SMP_REQUIRE(!wrong, name, ": ", wrong.value_or(""));
}

}  // namespace smp::schedule
