// server/ends/stall_report.h: what a rank says when nothing happens: who waits for what on this
// rank, what the other ranks answer when they are asked, and what is seen of those that do not
// (docs/design.md, Waits without an end).
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "server/admission/waiting_list.h"
#include "server/modules/module_table.h"
#include "server/protocol/message.h"
#include "server/protocol/pipeline_port.h"

namespace smp::server {

/// Asks the other stages what they wait for. A rank that does not answer within a second runs code
/// outside of this library, or is stopped. Of several ranks that a stall holds up, one reports it:
/// who asks first, or the lowest of those that ask at once. Threads: the rank's; nothing here
/// suspends, all is safe in a poll.
class StallReport {
 public:
  /// @param waiting  what may not start on this rank, by `clock`
  StallReport(PipelinePort& port, const ModuleTable& modules, const base::Clock& clock,
              const WaitingList& waiting)
      : port_(port), modules_(modules), clock_(clock), waiting_(waiting) {}

  /// Asks the other ranks for the report of a stall of `seconds`, unless one of them has asked in
  /// this stall.
  void ask(double seconds);
  /// Asks once more, without a report, so that text() tells the present state.
  void refresh(double seconds);
  /// Logs the report once all have answered, or a second later. Called in every poll.
  void poll();
  /// Returns the report with everything that is known now.
  std::string text(double seconds) const;
  /// Returns the rank that reports the stall which began `seconds` ago, if it is another one.
  std::optional<PpRank> reporter(double seconds) const noexcept;

  void on_question(PpRank from);
  void on_answer(PpRank from, StallAnswer&& answer);
  /// True if the messages that move now may be questions and answers of stall reports, which are no
  /// progress.
  bool talking() const noexcept;

 private:
  /// A line about one wait; `age` is negative where it is not known.
  struct Wait {
    std::string text;
    base::Nanoseconds age;
  };
  struct Answer {
    std::vector<Wait> waits;
    base::Nanoseconds received;
  };

  bool asked_within(base::Nanoseconds duration) const noexcept;
  void send_questions();
  std::vector<Wait> own_waits() const;
  void add_requests(std::vector<Wait>& waits) const;
  std::string describe(const Waiting& waiting) const;
  std::string lines_of_all() const;
  std::string lines_of_silent() const;

  PipelinePort& port_;
  const ModuleTable& modules_;
  const base::Clock& clock_;
  const WaitingList& waiting_;
  std::map<int, Answer> answers_;  // by stage
  std::optional<double> due_;      // seconds of the stall that is to be reported
  base::Nanoseconds asked_ = 0;    // 0: never
  base::Nanoseconds last_talk_ = 0;
  std::optional<PpRank> asker_;  // of the last question that counts
  base::Nanoseconds questioned_ = 0;
};

}  // namespace smp::server
