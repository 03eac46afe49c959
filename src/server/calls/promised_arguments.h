// server/calls/promised_arguments.h: arguments of a remote call that earlier calls have promised
// (docs/design.md, Promised outputs). Threads: the rank's.
#pragma once

#include <vector>

#include "server/calls/promised_outputs.h"
#include "server/protocol/message.h"

namespace smp::server {

/// Fetches the values of those promises among `tensors` that cannot go straight to where they are
/// needed: their calls do not pass on, or one tensor is two arguments and must stay one tensor. May
/// suspend.
void fetch_what_is_not_passed_on(std::vector<at::Tensor>& tensors);

/// Returns all other promises among `tensors`, with the names by which `owner` gets them. The fiber
/// must not wait between this and sending the request. Outputs that `owner` has itself are kept by
/// `uses` until its answer.
std::vector<PromisedInput> name_promises(const std::vector<at::Tensor>& tensors, PpRank owner,
                                         OutputUses& uses);

}  // namespace smp::server
