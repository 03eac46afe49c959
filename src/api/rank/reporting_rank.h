// api/rank/reporting_rank.h: an error that all ranks throw alike is printed by one of them.
#pragma once

#include <functional>
#include <string>

#include "api/rank/rank_parts.h"

namespace smp {

/// Which of the ranks that train one model together prints what all of them throw. Threads: the
/// rank's.
class ReportingRank {
 public:
  explicit ReportingRank(const RankParts& parts);

  /// Runs `check`, whose errors every rank throws alike: the reporting rank prints them.
  void report_once(const std::function<void()>& check) const;
  /// All ranks are about to throw an error with this text, which the reporting rank prints.
  void leave_to_it(const std::string& text) const;

 private:
  GlobalRank rank_;
  bool elsewhere_;  // another process
};

}  // namespace smp
