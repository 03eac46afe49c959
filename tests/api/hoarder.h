// A net one of whose modules keeps what another rank has made for it, where nobody sees it, so that
// a window under static mode opens only by being told (docs/design.md, Static mode).
#pragma once

#include <vector>

namespace smp {
namespace static_mode_test {

/// Trains it on 3 ranks or more, in a session, for `steps` steps of kMicrobatches; in step `hides`
/// results are kept. @return  losses, on rank 0
std::vector<double> train_hoarder(int steps, int hides);

/// Lets go of what was kept, when no step runs.
void forget_what_is_hidden();

}  // namespace static_mode_test
}  // namespace smp
