// alive/common_errors.h: who says why a job ends: an error that several ranks throw is printed by
// one of them.
#pragma once

#include <string>

#include "smp/rank.h"

namespace smp::server {

/// Notes that rank `speaker` throws an error with this text as well, or one that says more, and
/// prints it for all ranks. Does nothing if all ranks are in one process. Any thread.
void leave_to_another_rank(const std::string& text, GlobalRank speaker);
/// Makes say_once() print `fuller`, which says where the error comes from, instead of `text`. Any
/// thread.
void say_more(const std::string& text, const std::string& fuller);

/// Prints "smp: `text`" and a newline, with this rank if it is an error of its own, or leaves it to
/// another rank: then waits until that one has spoken, because a launcher ends the other ranks when
/// the first one exits. If it does not speak in time, this rank does. If several ranks of a machine
/// end by the same error and no speaker was noted, the first of them prints it; before they are
/// ranks too, if a launcher started them (alive/spoken_mark.h). Any thread.
/// @param of_lost_peer  true for a PeerLostError: if a rank is gone, that is printed instead,
///                      unless the ranks know another cause (leave_to_another_rank())
void say_once(const std::string& text, bool of_lost_peer = false) noexcept;

}  // namespace smp::server
