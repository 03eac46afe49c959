// server/calls/promised_arguments.h: arguments of a remote call that earlier calls have promised
// (docs/design.md, Promised outputs). Threads: the rank's.
#pragma once

#include <vector>

#include "server/calls/promised_outputs.h"
#include "server/protocol/message.h"

namespace smp::server {

/// Gets the values of those that cannot go where they are needed without coming here: their calls
/// do not pass on, or one tensor is two arguments, which it stays. May wait.
void fetch_what_is_not_passed_on(std::vector<at::Tensor>& tensors);

/// All other promises among `tensors`, by the names that `owner` asks for them by; there must be no
/// wait between this and the request. Those that it has itself are in `uses` until its answer.
std::vector<PromisedInput> name_promises(const std::vector<at::Tensor>& tensors, PpRank owner,
                                         OutputUses& uses);

}  // namespace smp::server
