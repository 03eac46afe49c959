// server/stall_report.cpp: asking, answering, and the text.
#include "server/stall_report.h"

#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "fiber/scheduler.h"

namespace smp::server {
namespace {

constexpr base::Nanoseconds kPatience = base::kSecond;
constexpr base::Nanoseconds kTalk = 2 * base::kSecond;

}  // namespace

void StallReport::ask(double seconds) {
  due_ = seconds;
  asked_ = last_talk_ = clock_.now();
  answers_.clear();
  port_.send_to_others(StallQuestion{});
}

void StallReport::poll() {
  if (!due_) return;
  const bool complete = answers_.size() + 1 == static_cast<std::size_t>(port_.size());
  if (!complete && clock_.now() - asked_ < kPatience) return;
  const double seconds = *std::exchange(due_, std::nullopt);
  base::log(base::LogLevel::kWarning, text(seconds),
            "\n    (stall_seconds reports, abort_seconds ends the job)");
}

std::string StallReport::text(double seconds) const {
  std::string text = base::concat("rank ", port_.name(), ": nothing happened for ",
                                  static_cast<int>(seconds), " s in step ", port_.step(), ":");
  text += own_lines();
  if (asked_ == 0) return text;
  for (int stage = 0; stage < port_.size(); ++stage) {
    const PpRank rank(stage);
    if (rank == port_.rank()) continue;
    const auto answer = answers_.find(stage);
    if (answer != answers_.end()) {
      text += answer->second;
    } else {
      text += base::concat("\n    rank ", port_.name(rank),
                           " does not answer: it computes in a module, is outside of steps, or "
                           "waits for something of its own (a lock, MPI, a file); see what it says "
                           "itself");
    }
  }
  return text;
}

std::string StallReport::own_lines() const {
  std::string lines;
  for (const auto& line : fiber::Scheduler::instance().waiting_report()) lines += "\n    " + line;
  return lines + others_();
}

void StallReport::on_question(PpRank from) {
  last_talk_ = clock_.now();
  auto lines = own_lines();
  if (lines.empty()) {
    lines =
        base::concat("\n    rank ", port_.name(), " waits for nothing, after step ", port_.step());
  }
  port_.send(from, Message(StallAnswer{std::move(lines)}));
}

void StallReport::on_answer(PpRank from, StallAnswer&& answer) {
  last_talk_ = clock_.now();
  answers_[from.value()] = std::move(answer.text);
}

bool StallReport::talking() const noexcept {
  return last_talk_ != 0 && clock_.now() - last_talk_ < kTalk;
}

}  // namespace smp::server
