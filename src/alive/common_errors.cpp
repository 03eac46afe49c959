// alive/common_errors.cpp: see the header.
#include "alive/common_errors.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include "alive/gone_ranks.h"
#include "alive/pulse.h"
#include "base/check.h"

namespace smp::server {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

/// What is known of an error of several ranks.
struct Known {
  std::string text;
  int speaker = -1;    // -1: this rank
  std::string fuller;  // what is printed instead of `text`
};

/// A program may catch such errors again and again.
constexpr std::size_t kMostKnown = 32;

struct Errors {
  std::mutex mutex;
  std::deque<Known> known;  // the latest first
};

/// Asked at the end of the process, so never freed.
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

/// Whether the ranks know why they end.
bool is_common(const Known& known) { return !known.text.empty() && known.fuller.empty(); }

/// Of the error whose text is in `text`, what was noted last.
Known find(const std::string& text) {
  auto& all = errors();
  const std::lock_guard lock(all.mutex);
  const auto found = std::find_if(all.known.begin(), all.known.end(), [&](const Known& known) {
    return known.fuller.empty() ? text.find(known.text) != std::string::npos : text == known.text;
  });
  return found == all.known.end() ? Known{} : *found;
}

/// What is not of several ranks is told with its own, unless it names one.
std::string line_of(const std::string& text, const Known& known) {
  if (!known.text.empty()) return known.fuller.empty() ? text : known.fuller;
  const bool alone = base::ranks_on_board() < 2;
  return alone || text.starts_with("rank ")
             ? text
             : base::concat("rank ", base::own_pulse().rank.load(), ": ", text);
}

/// Whether rank `speaker` has said it. Of a rank that nobody sees from here nothing is known: as a
/// rule the launcher ends this process while it waits.
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

/// Whether a rank of this machine is gone, and somebody has said so or why: this rank, if no other
/// did. Its memory cannot be read some time before it has ended.
bool said_that_a_rank_is_gone() {
  const auto deadline = std::chrono::steady_clock::now() + seconds(1);
  while (!base::name_gone_ranks() && !base::a_gone_rank_has_spoken()) {
    if (base::ranks_on_board() < 2 || std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(milliseconds(5));
  }
  return true;
}

/// Whether another rank of this machine ends by an error with the same text and has said so: a flag
/// that does not fit, a file that is missing.
bool said_by_one_like_it(const std::string& text) {
  const int speaker = base::speaker_of(std::hash<std::string>()(text));
  return speaker != base::own_pulse().rank && said_by(speaker);
}

}  // namespace

void leave_to_another_rank(const std::string& text, GlobalRank speaker) {
  const int own = base::own_pulse().rank;
  if (own >= 0) note({text, own == speaker.value() ? -1 : speaker.value(), {}});
}

bool is_left_to_another_rank(const std::string& text) { return find(text).speaker >= 0; }

void say_more(const std::string& text, const std::string& fuller) { note({text, -1, fuller}); }

void say_once(const std::string& text, bool of_lost_peer) noexcept try {
  const auto known = find(text);
  bool said = known.speaker >= 0 && said_by(known.speaker);
  if (known.speaker < 0 && of_lost_peer && !is_common(known)) said = said_that_a_rank_is_gone();
  if (!said && known.text.empty()) said = said_by_one_like_it(text);
  if (said) {
    base::own_pulse().spoke = true;  // for those who wait for this rank
    return;
  }
  std::fprintf(stderr, "smp: %s\n", line_of(text, known).c_str());
  std::fflush(stderr);
  base::own_pulse().spoke = true;
} catch (...) {
  std::fputs("smp: an error that could not be printed\n", stderr);
  base::own_pulse().spoke = true;
}

}  // namespace smp::server
