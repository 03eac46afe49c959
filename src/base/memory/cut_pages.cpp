// base/memory/cut_pages.cpp: a handler of SIGBUS while a copy runs, which jumps out of it.
#include "base/memory/cut_pages.h"

#include <atomic>
#include <csetjmp>
#include <csignal>
#include <cstdint>
#include <mutex>

#include "base/memory/streaming_copy.h"

namespace smp::base {
namespace {

/// The copy that a thread is in.
struct Copy {
  std::uintptr_t begin, end;  // of what it reads
  sigjmp_buf way_out;
};

/// The handler may read it in the middle of the copy, of which a compiler knows nothing.
thread_local Copy* volatile running = nullptr;

struct sigaction earlier {};  // written while no handler of ours is there

void on_bus_error(int signal, siginfo_t* info, void*) {
  const bool raised = info->si_code > 0;  // by an instruction
  const auto address = reinterpret_cast<std::uintptr_t>(info->si_addr);
  Copy* const copy = running;
  if (raised && copy != nullptr && address >= copy->begin && address < copy->end) {
    siglongjmp(copy->way_out, 1);
  }
  // The instruction runs again, now under the earlier handler; what was sent is sent again.
  sigaction(signal, &earlier, nullptr);
  if (!raised) raise(signal);
}

/// There is a handler as long as any thread copies.
class Handler {
 public:
  Handler() {
    const std::scoped_lock lock(mutex_);
    if (users_++ > 0) return;
    struct sigaction action {};
    action.sa_sigaction = on_bus_error;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaction(SIGBUS, &action, &earlier);
  }
  ~Handler() {
    const std::scoped_lock lock(mutex_);
    if (--users_ == 0) sigaction(SIGBUS, &earlier, nullptr);
  }
  Handler(const Handler&) = delete;
  Handler& operator=(const Handler&) = delete;

 private:
  static inline std::mutex mutex_;
  static inline int users_ = 0;
};

/// A function of its own: nothing here needs a destructor, which the jump would leave out.
bool copied(Copy& copy, void* to, const void* from, std::size_t size) {
  if (sigsetjmp(copy.way_out, /*savemask=*/1) != 0) {
    running = nullptr;
    return false;
  }
  running = &copy;
  std::atomic_signal_fence(std::memory_order_seq_cst);
  streaming_copy(to, from, size);
  std::atomic_signal_fence(std::memory_order_seq_cst);
  running = nullptr;
  return true;
}

}  // namespace

bool copy_mapped(void* to, const void* from, std::size_t size) {
  const Handler handler;
  const auto begin = reinterpret_cast<std::uintptr_t>(from);
  Copy copy{begin, begin + size, {}};
  return copied(copy, to, from, size);
}

}  // namespace smp::base
