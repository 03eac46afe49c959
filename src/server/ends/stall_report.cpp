// server/ends/stall_report.cpp: asking, answering, and the text.
#include "server/ends/stall_report.h"

#include <charconv>
#include <set>
#include <sstream>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "fiber/scheduler.h"
#include "server/ends/silent_rank.h"

namespace smp::server {
namespace {

constexpr base::Nanoseconds kPatience = base::kSecond;
constexpr base::Nanoseconds kTalk = 2 * base::kSecond;

std::string line(const std::string& text, base::Nanoseconds age) {
  if (age < 0) return "\n    " + text;
  const auto tenths = static_cast<double>(age / (base::kSecond / 10));
  return base::concat("\n    ", text, ", for ", tenths / 10, " s");
}

}  // namespace

// ---- asking ------------------------------------------------------------------------------------

void StallReport::ask(double seconds) {
  if (reporter(seconds)) return;
  due_ = seconds;
  send_questions();
}

void StallReport::refresh(double seconds) {
  if (!reporter(seconds) && !asked_within(kTalk)) send_questions();
}

void StallReport::send_questions() {
  asked_ = last_talk_ = clock_.now();
  answers_.clear();
  port_.send_to_others(StallQuestion{});
}

bool StallReport::asked_within(base::Nanoseconds duration) const noexcept {
  return asked_ != 0 && clock_.now() - asked_ < duration;
}

void StallReport::poll() {
  if (!due_) return;
  const bool complete = answers_.size() + 1 == static_cast<std::size_t>(port_.size());
  if (!complete && asked_within(kPatience)) return;
  const double seconds = *std::exchange(due_, std::nullopt);
  base::log(base::LogLevel::kWarning, text(seconds),
            "\n    (stall_seconds reports, abort_seconds ends the job)");
}

std::optional<PpRank> StallReport::reporter(double seconds) const noexcept {
  const auto began = clock_.now() - static_cast<base::Nanoseconds>(seconds * base::kSecond);
  return questioned_ != 0 && questioned_ >= began ? asker_ : std::nullopt;
}

// ---- answering ---------------------------------------------------------------------------------

/// Answers a question of another rank. Ranks that ask at the same time hear of each other, and all
/// but the lowest give their report up.
void StallReport::on_question(PpRank from) {
  last_talk_ = clock_.now();
  if (from < port_.rank() || !asked_within(kTalk)) {
    asker_ = from;
    questioned_ = last_talk_;
    due_.reset();
  }
  std::string text;
  for (const auto& wait : own_waits()) text += base::concat(wait.age, ' ', wait.text, '\n');
  port_.send(from, Message(StallAnswer{std::move(text)}));
}

void StallReport::on_answer(PpRank from, StallAnswer&& answer) {
  last_talk_ = clock_.now();
  auto& own = answers_[from.value()];
  own = {{}, last_talk_};
  std::istringstream lines(answer.text);
  for (std::string one; std::getline(lines, one);) {
    base::Nanoseconds age = -1;
    const auto [end, error] = std::from_chars(one.data(), one.data() + one.size(), age);
    if (error != std::errc()) continue;
    own.waits.push_back({one.substr(static_cast<std::size_t>(end - one.data()) + 1), age});
  }
}

bool StallReport::talking() const noexcept {
  return last_talk_ != 0 && clock_.now() - last_talk_ < kTalk;
}

// ---- the text ----------------------------------------------------------------------------------

std::string StallReport::text(double seconds) const {
  std::string text;
  for (const auto& stopped : stopped_ranks(modules_, clock_.now())) {
    text += stopped.text + "\n    seen by ";
  }
  text += base::concat("rank ", port_.name(), ": nothing happened for ", static_cast<int>(seconds),
                       " s in step ", port_.step(), ":");
  return text + lines_of_all() + lines_of_silent();
}

/// Returns the lines of this rank's waits, and of those of the ranks that have answered, which have
/// gone on waiting since.
std::string StallReport::lines_of_all() const {
  std::string text;
  for (const auto& wait : own_waits()) text += line(wait.text, wait.age);
  const auto now = clock_.now();
  for (const auto& [stage, answer] : answers_) {
    for (const auto& wait : answer.waits) {
      text += line(wait.text, wait.age < 0 ? wait.age : wait.age + now - answer.received);
    }
  }
  return text;
}

std::string StallReport::lines_of_silent() const {
  std::string text;
  if (asked_ == 0) return text;
  for (int stage = 0; stage < port_.size(); ++stage) {
    const PpRank rank(stage);
    if (rank == port_.rank() || answers_.contains(stage)) continue;
    const auto seen = look_at(port_.name(rank), modules_, clock_.now());
    if (!seen.stopped) text += "\n    " + seen.text;
  }
  return text;
}

std::vector<StallReport::Wait> StallReport::own_waits() const {
  std::vector<Wait> waits;
  for (auto& wait : fiber::Scheduler::instance().waits()) {
    waits.push_back({std::move(wait.text), wait.age});
  }
  add_requests(waits);
  if (waits.empty()) {
    waits.push_back(
        {base::concat("rank ", port_.name(), " waits for nothing, after step ", port_.step()), -1});
  }
  return waits;
}

/// Of fibers the scheduler tells. Requests that one execution makes wait for each other: of those
/// the first that came stands for all.
void StallReport::add_requests(std::vector<Wait>& waits) const {
  std::set<std::pair<int, std::uint64_t>> rows;
  for (const auto& waiting : waiting_) {
    const auto* const asker = waiting.asker();
    if (asker == nullptr) continue;
    if (waiting.reason == Reason::kRow) {
      const auto row = std::get<ForwardTask>(waiting.task).request.row;
      if (!rows.emplace(asker->value(), row).second) continue;
    }
    waits.push_back({describe(waiting), clock_.now() - waiting.since});
  }
}

std::string StallReport::describe(const Waiting& waiting) const {
  auto text = base::concat("rank ", port_.name());
  if (std::holds_alternative<BackwardTask>(waiting.task)) text += ", backward";
  if (waiting.module != kBody) text += base::concat(", module ", modules_.path(waiting.module));
  return base::concat(text, ", microbatch ", waiting.microbatch, ", for rank ",
                      port_.name(*waiting.asker()), ": waits for ", text_of(waiting.reason));
}

}  // namespace smp::server
