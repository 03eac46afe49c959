// alive/gone_ranks.cpp: only what is safe in a handler of signals is called.
#include "alive/gone_ranks.h"

#include <unistd.h>

#include <cstdio>

#include "alive/pulse.h"

namespace smp::base {
namespace {

/// Says on stderr that a rank is gone, and which microbatch it ran last. The path of its module is
/// not known here.
void name_rank(int rank, const Pulse& pulse) noexcept {
  char work[64] = "it ran no module yet";
  if (pulse.module != Pulse::kNothing) {
    std::snprintf(work, sizeof work, "the last that it ran was of microbatch %d (%s)",
                  pulse.microbatch.load(), pulse.backward ? "backward" : "forward");
  }
  char text[256];
  const int length =
      std::snprintf(text, sizeof text,
                    "smp: rank %d is gone: its process %d was killed (SIGKILL; `dmesg` tells "
                    "whether memory was short), or left without a word; %s\n",
                    rank, pulse.process.load(), work);
  if (write(STDERR_FILENO, text, static_cast<std::size_t>(length)) < 0) return;
}

bool left_without_a_word(const Pulse& pulse) noexcept {
  return !pulse.spoke && !pulse.ends && is_gone(pulse);
}

}  // namespace

bool name_gone_ranks() noexcept {
  bool any = false;
  for (int rank = 0; rank < ranks_on_board(); ++rank) {
    const auto* const pulse = pulse_of(rank);
    if (pulse == nullptr || !left_without_a_word(*pulse)) continue;
    any = true;
    if (first_to_name(rank)) name_rank(rank, *pulse);
  }
  return any;
}

bool a_gone_rank_has_spoken() noexcept {
  for (int rank = 0; rank < ranks_on_board(); ++rank) {
    const auto* const pulse = pulse_of(rank);
    if (pulse != nullptr && pulse->spoke && is_gone(*pulse)) return true;
  }
  return false;
}

}  // namespace smp::base
