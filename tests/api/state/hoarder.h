// A net one of whose modules keeps what another rank has made for it, where nobody sees it, so that
// a window under static mode opens only by being told (docs/design.md, Static mode).
#pragma once

#include <cstdint>
#include <vector>

namespace smp {
namespace static_mode_test {

/// By step.
struct HoarderSteps {
  std::vector<double> losses;                   ///< on rank 0
  std::vector<std::uint64_t> control_messages;  ///< of this rank
};

/// Trains it on 3 ranks or more, in a session, for `steps` steps of kMicrobatches; from step
/// `hides` on results are kept.
HoarderSteps train_hoarder(int steps, int hides);

/// Lets go of what was kept, when no step runs.
void forget_what_is_hidden();

}  // namespace static_mode_test
}  // namespace smp
