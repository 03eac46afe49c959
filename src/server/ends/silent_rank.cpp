// server/ends/silent_rank.cpp: see the header.
#include "server/ends/silent_rank.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <utility>

#include "alive/pulse.h"
#include "alive/running_call.h"
#include "base/check.h"

namespace smp::server {
namespace {

/// Returns the state of a process, the letter in /proc/PID/stat behind the name (which may hold
/// anything): R, S, T, ...; ' ' if there is none.
char state_of(int process) {
  std::ifstream file(base::concat("/proc/", process, "/stat"));
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const auto end = text.rfind(") ");
  return end == std::string::npos || end + 2 >= text.size() ? ' ' : text[end + 2];
}

std::string last_call(const base::Pulse& pulse, const ModuleTable& modules) {
  const int module = pulse.module;
  if (module == base::Pulse::kNothing) return "it has run no module yet";
  return base::concat(pulse.running ? "it is in module " : "the last that it ran was module ",
                      shown(modules.path(ModuleId{module})),
                      pulse.backward ? " (backward)" : " (forward)", ", microbatch ",
                      pulse.microbatch.load());
}

/// True if a heartbeat of the rank was noted in the last 1.5 s: its watchdog checks at least once a
/// second.
bool comes_back(const base::Pulse& pulse, base::Nanoseconds now) {
  return pulse.last_beat != 0 && now - pulse.last_beat < 3 * base::kSecond / 2;
}

double seconds_since(const base::Pulse& pulse, base::Nanoseconds now) {
  const auto since = std::max<base::Nanoseconds>(0, now - pulse.last_beat);
  return static_cast<double>(since / (base::kSecond / 10)) / 10;
}

}  // namespace

SilentRank look_at(GlobalRank rank, const ModuleTable& modules, base::Nanoseconds now) {
  constexpr const char* kAnswersNot =
      " does not answer: it computes in a module, is outside of steps, or waits for something of "
      "its own (a lock, MPI, a file); see what it says itself";
  constexpr const char* kUnheard =
      " works, since its thread comes back to this library, but no answer of it arrives: it makes "
      "a "
      "plan, or the connection to it is cut";
  const auto* const pulse = base::pulse_of(rank.value());
  if (pulse == nullptr) return {rank, false, base::concat("rank ", rank, kAnswersNot)};
  const int process = pulse->process;
  const auto seen = base::concat("; ", last_call(*pulse, modules), "; nothing was seen of it for ",
                                 seconds_since(*pulse, now), " s (process ", process, ")");
  const char state = state_of(process);
  if (state != 'T' && state != 't') {
    const auto* const why = comes_back(*pulse, now) ? kUnheard : kAnswersNot;
    return {rank, false, base::concat("rank ", rank, why, seen)};
  }
  return {rank, true,
          base::concat("rank ", rank, " is stopped (SIGSTOP, SIGTSTP or a debugger)", seen,
                       "; `kill -CONT ", process, "` lets it go on")};
}

std::vector<SilentRank> stopped_ranks(const ModuleTable& modules, base::Nanoseconds now) {
  std::vector<SilentRank> found;
  for (int rank = 0; rank < base::ranks_on_board(); ++rank) {
    if (base::pulse_of(rank) == nullptr) continue;
    auto seen = look_at(GlobalRank(rank), modules, now);
    if (seen.stopped) found.push_back(std::move(seen));
  }
  return found;
}

}  // namespace smp::server
