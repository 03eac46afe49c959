// server/replay/recorded_flow.h: static mode: which calls executions have made so far, one after
// the other, and which ways their results went (docs/design.md, Static mode; paper §4.4). Pure.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/random.h"
#include "server/protocol/ids.h"
#include "server/protocol/message.h"
#include "server/running/call_way.h"

namespace smp::server {

/// A tree of calls: where control flow branches, each branch has calls of its own. Threads: the
/// rank's.
class RecordedFlow {
 public:
  /// A call that an execution has made after a certain sequence of others.
  class Call {
   public:
    /// The ranks to which its results will go, if they went to the same ones the last two times;
    /// else empty.
    const std::vector<SendAhead>& ahead() const noexcept { return ahead_; }
    /// Notes where its results went this time. Timing may decide whether a request gets a name or a
    /// value, so the counts of two times may differ: only the smaller count is sent ahead, further
    /// requests ask.
    void went(std::vector<SendAhead>&& ways) {
      ahead_.clear();
      if (known_ && std::ranges::equal(ways, ways_, same_way)) {
        for (std::size_t i = 0; i < ways.size(); ++i) {
          ahead_.push_back({ways[i].output, ways[i].to, std::min(ways[i].times, ways_[i].times)});
        }
      }
      known_ = true;
      ways_ = std::move(ways);
    }

   private:
    static bool same_way(const SendAhead& a, const SendAhead& b) noexcept {
      return a.output == b.output && a.to == b.to;
    }

    std::vector<SendAhead> ways_;   // of the last time
    std::vector<SendAhead> ahead_;  // of the next
    bool known_ = false;
  };
  using Way = CallWay;
  struct Step {
    Call* call;    ///< nullptr: too many calls are recorded; valid as long as the RecordedFlow
    bool departs;  ///< the first call at which the execution leaves all recorded ways
  };

  /// Returns the next call of an execution, which is recorded if it is new.
  /// @param way  the calls of the execution so far, to which this one is added
  /// @param kind  the same for alike calls (ExpectedResults::key_of)
  Step next(Way& way, std::uint64_t kind) {
    way.name = base::mix_key(way.name, kind);
    const auto found = calls_.find(way.name);
    if (found != calls_.end()) return {&found->second, false};
    if (calls_.size() >= kMost) return {nullptr, false};
    return {&calls_[way.name], !std::exchange(way.is_new, true)};
  }

 private:
  /// A bound on the calls recorded: arguments may hold a number that differs at each call.
  static constexpr std::size_t kMost = 1 << 16;

  std::unordered_map<std::uint64_t, Call> calls_;
};

}  // namespace smp::server
