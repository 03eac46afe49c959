// server/stall_report.h: what a rank says when nothing happens: who waits for what on this rank,
// and what the other ranks answer when they are asked (docs/design.md, Waits without an end).
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "server/message.h"
#include "server/pipeline_port.h"

namespace smp::server {

/// Asks the other stages what they wait for. One that does not answer within a second is outside of
/// this library: it computes, or waits for something of its own. Threads: the rank's; nothing here
/// suspends, all is safe in a poll.
class StallReport {
 public:
  /// @param others  lines about what waits on this rank without a fiber
  StallReport(PipelinePort& port, const base::Clock& clock, std::function<std::string()> others)
      : port_(port), clock_(clock), others_(std::move(others)) {}

  /// A stall of `seconds` is to be reported: asks the others.
  void ask(double seconds);
  /// Logs the report once all have answered, or a second later. Called in every poll.
  void poll();
  /// All that is known now.
  std::string text(double seconds) const;

  void on_question(PpRank from);
  void on_answer(PpRank from, StallAnswer&& answer);
  /// Whether what moves now may be these messages, which are no progress.
  bool talking() const noexcept;

 private:
  std::string own_lines() const;

  PipelinePort& port_;
  const base::Clock& clock_;
  const std::function<std::string()> others_;
  std::map<int, std::string> answers_;  // by stage
  std::optional<double> due_;           // seconds of the stall that is to be reported
  base::Nanoseconds asked_ = 0;
  base::Nanoseconds last_talk_ = 0;  // 0: never
};

}  // namespace smp::server
