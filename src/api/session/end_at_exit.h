// api/session/end_at_exit.h: sessions that outlive main().
#pragma once

namespace smp {

class RankSession;

/// Remembers where the program keeps this thread's session: exit() ends it in good order, as
/// leaving main() would have, if that is no place on the thread's stack, but an object of static
/// duration or one on the heap. Those are destroyed too late for it, or never: threads' own
/// objects, among them the fiber scheduler, are destroyed before them. A session on the stack of a
/// program that calls exit() is left to ExitWatch. Nothing ends a session in the middle of a step.
/// @param session  nullptr: there is none any more
void end_at_exit(RankSession* session, const void* holder) noexcept;

}  // namespace smp
