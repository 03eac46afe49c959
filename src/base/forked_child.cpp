// base/forked_child.cpp: handlers of fork (pthread_atfork(3)); posix_spawn and vfork, which run
// none, are followed by exec, and that closes what is marked so.
#include "base/forked_child.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <mutex>
#include <set>

namespace smp::base {
namespace {

struct OwnFiles {
  std::mutex mutex;
  std::set<int> files;
};

/// Never freed: children are forked until the process ends.
OwnFiles& own() {
  static auto* const all = new OwnFiles();
  return *all;
}

std::atomic<int> forks{0};

void before_fork() { own().mutex.lock(); }
void after_fork_in_parent() { own().mutex.unlock(); }
void after_fork_in_child() {
  ++forks;
  for (const int file : own().files) ::close(file);
  own().files.clear();
  own().mutex.unlock();
}

void notice_forks() noexcept {
  static const int once = ::pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
  static_cast<void>(once);
}

}  // namespace

MadeHere::MadeHere() noexcept {
  notice_forks();
  forks_ = forks.load(std::memory_order_relaxed);
}

bool MadeHere::is_here() const noexcept { return forks_ == forks.load(std::memory_order_relaxed); }

void keep_from_children(int file) {
  notice_forks();
  const std::lock_guard lock(own().mutex);
  own().files.insert(file);
}

void close_own(int file) noexcept {
  const std::lock_guard lock(own().mutex);  // no child may be forked in between
  if (own().files.erase(file) > 0) ::close(file);
}

}  // namespace smp::base
