// schedule/schedule_lists.cpp: lists to text and back.
#include "schedule/schedule_lists.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <sstream>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "base/files.h"
#include "base/text/excerpt.h"

namespace smp::schedule {
namespace {

constexpr std::string_view kFormat = "smp-schedule";
constexpr int kVersion = 1;
constexpr std::string_view kLetters = "FBIW";  // by ActionKind
constexpr int kMostMicrobatches = 1'000'000;   // a larger number is a slip of the pen

std::optional<int> number_of(std::string_view text) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < 0) return std::nullopt;
  return number;
}

std::optional<Action> action_of(std::string_view word) {
  const auto kind = kLetters.find(word.front());
  const auto microbatch = number_of(word.substr(1));
  if (kind == std::string_view::npos || !microbatch) return std::nullopt;
  return Action{static_cast<ActionKind>(kind), *microbatch};
}

class Parser {
 public:
  Parser(const std::string& text, const std::string& name) : text_(text), name_(name) {}

  ScheduleLists run() {
    read_header();
    while (next_line()) read_rank();
    SMP_REQUIRE(!ranks_.empty(), name_, ": there is no line \"rank 0: F0 ...\"");
    ScheduleLists lists{microbatches_, {}};
    for (auto& [rank, actions] : ranks_) {
      SMP_REQUIRE(rank == lists.pp_size(), name_, ": there is no line for rank ", lists.pp_size(),
                  ", but one for rank ", rank);
      lists.ranks.push_back(std::move(actions));
    }
    return lists;
  }

 private:
  /// Reads the words of the next line that has any. Returns false at the end.
  bool next_line() {
    for (std::string line; std::getline(text_, line);) {
      ++line_;
      std::istringstream rest(line.substr(0, line.find('#')));
      words_.clear();
      for (std::string word; rest >> word;) words_.push_back(word);
      if (!words_.empty()) return true;
    }
    return false;
  }

  std::string here() const { return base::concat(name_, ", line ", line_); }

  /// Returns the number if the line is `word` and a number.
  std::optional<int> number_after(std::string_view word) const {
    if (words_.size() != 2 || words_[0] != word) return std::nullopt;
    return number_of(words_[1]);
  }

  void read_header() {
    const auto version = next_line() ? number_after(kFormat) : std::nullopt;
    SMP_REQUIRE(version, name_, ": no schedule: it must begin with the line \"", kFormat, " ",
                kVersion, "\"");
    SMP_REQUIRE(*version == kVersion, name_, ": version ", *version, " of the format; this is ",
                kVersion);
    const auto microbatches = next_line() ? number_after("microbatches") : std::nullopt;
    SMP_REQUIRE(microbatches && *microbatches >= 1 && *microbatches <= kMostMicrobatches, here(),
                ": expected \"microbatches M\", with M from 1 to ", kMostMicrobatches);
    microbatches_ = *microbatches;
  }

  void read_rank() {
    auto number = words_.size() < 2 ? std::string() : words_[1];
    const bool colon = !number.empty() && number.back() == ':';
    if (colon) number.pop_back();
    const auto rank = number_of(number);
    SMP_REQUIRE(words_[0] == "rank" && colon && rank, here(),
                ": expected \"rank R: F0 ...\", with a space after the colon");
    const auto [place, is_new] = ranks_.try_emplace(*rank);
    SMP_REQUIRE(is_new, here(), ": rank ", *rank, " has a line already");
    for (std::size_t i = 2; i < words_.size(); ++i) {
      const auto action = action_of(words_[i]);
      SMP_REQUIRE(action, here(), ": rank ", *rank, ", position ", i - 1, ": \"",
                  base::excerpt(words_[i]),
                  "\" is no action; use F, B, I or W and the number of a microbatch");
      place->second.push_back(*action);
    }
  }

  std::istringstream text_;
  const std::string& name_;
  std::vector<std::string> words_;
  int line_ = 0;
  int microbatches_ = 0;
  std::map<int, std::vector<Action>> ranks_;
};

/// Returns the first quoted lists of a JSON text with their lines apart; empty if there are none.
/// Lists hold nothing that JSON would write in another way.
std::string quoted_lists(const std::string& json) {
  constexpr std::string_view kLineEnd = "\\n";
  const auto start = json.find(base::concat('"', kFormat, ' '));
  if (start == std::string::npos) return {};
  auto lists = json.substr(start + 1, json.find('"', start + 1) - start - 1);
  for (auto at = lists.find(kLineEnd); at != std::string::npos; at = lists.find(kLineEnd, at)) {
    lists.replace(at, kLineEnd.size(), "\n");
  }
  return lists;
}

int most_alive_in(const std::vector<Action>& actions) {
  int alive = 0, most = 0;
  for (const Action& action : actions) {
    if (action.kind == ActionKind::kForward) most = std::max(most, ++alive);
    if (action.ends_microbatch()) --alive;
  }
  return most;
}

}  // namespace

std::string Action::text() const {
  return kLetters[static_cast<std::size_t>(kind)] + std::to_string(microbatch);
}

bool ScheduleLists::splits_backward() const noexcept {
  return std::any_of(ranks.begin(), ranks.end(), [](const auto& actions) {
    return std::any_of(actions.begin(), actions.end(), [](const Action& action) {
      return action.kind == ActionKind::kInputGradient;
    });
  });
}

std::vector<int> ScheduleLists::most_alive() const {
  std::vector<int> most;
  for (const auto& actions : ranks) most.push_back(most_alive_in(actions));
  return most;
}

std::string ScheduleLists::to_text() const {
  std::ostringstream text;
  text << kFormat << ' ' << kVersion << "\nmicrobatches " << microbatches << '\n';
  for (int rank = 0; rank < pp_size(); ++rank) {
    text << "rank " << rank << ':';
    for (const Action& action : ranks[static_cast<std::size_t>(rank)]) text << ' ' << action.text();
    text << '\n';
  }
  return text.str();
}

ScheduleLists ScheduleLists::from_text(const std::string& text, const std::string& name) {
  return Parser(text, name).run();
}

ScheduleLists ScheduleLists::read(const std::string& path) {
  const auto text = base::read_file(path);
  return from_text(text.starts_with('{') ? quoted_lists(text) : text, path);
}

void ScheduleLists::write(const std::string& path) const { base::write_file(path, to_text()); }

}  // namespace smp::schedule
