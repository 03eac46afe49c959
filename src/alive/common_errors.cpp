// alive/common_errors.cpp: see the header.
#include "alive/common_errors.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>

#include "alive/gone_ranks.h"
#include "alive/pulse.h"
#include "alive/spoken_mark.h"
#include "base/check.h"

namespace smp::server {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

/// A note about an error that several ranks throw.
struct Known {
  std::string text;
  int speaker = -1;    // -1: this rank
  std::string fuller;  // what is printed instead of `text`
};

/// A bound on the notes kept: a program may catch such errors again and again.
constexpr std::size_t kMostKnown = 32;

struct Errors {
  std::mutex mutex;
  std::deque<Known> known;  // the latest first
};

/// Returns the notes of this process. They are needed until it ends, so they are never freed.
Errors& errors() {
  static auto* const own = new Errors();
  return *own;
}

void note(Known known) {
  if (known.text.empty()) return;
  auto& all = errors();
  const std::lock_guard lock(all.mutex);
  all.known.push_front(std::move(known));
  if (all.known.size() > kMostKnown) all.known.pop_back();
}

/// True if the ranks know a common cause: the error was left to a speaker, this rank or another.
bool is_common(const Known& known) { return !known.text.empty() && known.fuller.empty(); }

/// Returns the latest note about the error whose text is in `text`; an empty one if there is none.
Known find(const std::string& text) {
  auto& all = errors();
  const std::lock_guard lock(all.mutex);
  const auto found = std::find_if(all.known.begin(), all.known.end(), [&](const Known& known) {
    return known.fuller.empty() ? text.find(known.text) != std::string::npos : text == known.text;
  });
  return found == all.known.end() ? Known{} : *found;
}

/// Returns the line to print. An error that was not noted gets this rank in front, unless it names
/// a rank or there is only one.
std::string line_of(const std::string& text, const Known& known) {
  if (!known.text.empty()) return known.fuller.empty() ? text : known.fuller;
  const bool alone = base::ranks_on_board() < 2;
  return alone || text.starts_with("rank ")
             ? text
             : base::concat("rank ", base::own_pulse().rank.load(), ": ", text);
}

/// Waits until rank `speaker` has printed its error; returns false if it has not in time (30 s, or
/// 1 s after its end). A rank of another machine cannot be seen: it gets 10 s, in which the
/// launcher usually ends this process.
bool said_by(int speaker) {
  const auto start = std::chrono::steady_clock::now();
  const auto* const pulse = base::pulse_of(speaker);
  auto deadline = start + (pulse == nullptr ? seconds(10) : seconds(30));
  for (bool gone = false;;) {
    if (pulse != nullptr && pulse->spoke) return true;
    const auto now = std::chrono::steady_clock::now();
    if (now > deadline) return false;
    if (pulse != nullptr && !gone && (gone = base::is_gone(*pulse))) deadline = now + seconds(1);
    std::this_thread::sleep_for(milliseconds(5));
  }
}

/// Returns true if a rank of this machine is gone and that, or its cause, has been printed, by this
/// rank if by no other. Waits up to 1 s, because a rank's memory cannot be read for some time
/// before it has ended.
bool said_that_a_rank_is_gone() {
  const auto deadline = std::chrono::steady_clock::now() + seconds(1);
  while (!base::name_gone_ranks() && !base::a_gone_rank_has_spoken()) {
    if (base::ranks_on_board() < 2 || std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(milliseconds(5));
  }
  return true;
}

/// True if another rank of this machine ends by an error with the same text and has printed it,
/// such as a degree that does not fit or a missing file. May wait for it.
bool said_by_one_like_it(const std::string& text) {
  const int speaker = base::speaker_of(std::hash<std::string>()(text));
  return speaker != base::own_pulse().rank && said_by(speaker);
}

}  // namespace

void leave_to_another_rank(const std::string& text, GlobalRank speaker) {
  const int own = base::own_pulse().rank;
  if (own >= 0) note({text, own == speaker.value() ? -1 : speaker.value(), {}});
}

void say_more(const std::string& text, const std::string& fuller) { note({text, -1, fuller}); }

void say_once(const std::string& text, bool of_lost_peer) noexcept try {
  const auto known = find(text);
  bool said = known.speaker >= 0 && said_by(known.speaker);
  if (known.speaker < 0 && of_lost_peer && !is_common(known)) said = said_that_a_rank_is_gone();
  if (!said && known.text.empty()) said = said_by_one_like_it(text);
  std::optional<base::SpokenMark> mark;  // of those that are no ranks yet
  if (!said && base::ranks_on_board() == 0) said = mark.emplace(text).is_set();
  if (!said) {
    std::fprintf(stderr, "smp: %s\n", line_of(text, known).c_str());
    std::fflush(stderr);
    if (mark) mark->set();
  }
  base::own_pulse().spoke = true;  // for those who wait for this rank, too
} catch (...) {
  std::fputs("smp: an error that could not be printed\n", stderr);
  base::own_pulse().spoke = true;
}

}  // namespace smp::server
