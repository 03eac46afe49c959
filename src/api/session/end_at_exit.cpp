// api/session/end_at_exit.cpp: a thread-local object, since these are destroyed by exit() first.
#include "api/session/end_at_exit.h"

#include <pthread.h>

#include <cstddef>
#include <functional>

#include "api/session/rank_session.h"

namespace smp {
namespace {

bool on_stack(const void* place) noexcept {
  pthread_attr_t attributes;
  if (::pthread_getattr_np(::pthread_self(), &attributes) != 0) return true;
  void* low = nullptr;
  std::size_t size = 0;
  const bool known = ::pthread_attr_getstack(&attributes, &low, &size) == 0;
  ::pthread_attr_destroy(&attributes);
  const auto* const begin = static_cast<const char*>(low);
  const std::less<const void*> before;
  return !known || (!before(place, begin) && before(place, begin + size));
}

struct Held {
  RankSession* session;
  const void* holder;
};
thread_local constinit Held held{};

struct EndOfThread {
  EndOfThread() {}  // declared, so that touching it makes it
  ~EndOfThread() {
    if (held.session == nullptr || !held.session->is_own() || on_stack(held.holder)) return;
    if (!held.session->rank().in_step()) held.session->end();
  }
};

}  // namespace

void end_at_exit(RankSession* session, const void* holder) noexcept {
  held = {session, holder};
  thread_local const EndOfThread watch;
  static_cast<void>(watch);
}

}  // namespace smp
