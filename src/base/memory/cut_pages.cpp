// base/memory/cut_pages.cpp: a handler of SIGBUS while pages are read, which jumps out of that.
#include "base/memory/cut_pages.h"

#include <atomic>
#include <csetjmp>
#include <csignal>
#include <cstdint>
#include <mutex>

#include "base/memory/streaming_copy.h"

namespace smp::base {
namespace {

/// What a thread reads.
struct Reading {
  std::uintptr_t begin, end;  // of what it reads
  sigjmp_buf way_out;
};

/// The handler may see it in the middle of reading, of which a compiler knows nothing.
thread_local Reading* volatile running = nullptr;

struct sigaction earlier {};  // written while no handler of ours is there

void on_bus_error(int signal, siginfo_t* info, void*) {
  const bool raised = info->si_code > 0;  // by an instruction
  const auto address = reinterpret_cast<std::uintptr_t>(info->si_addr);
  Reading* const reading = running;
  if (raised && reading != nullptr && address >= reading->begin && address < reading->end) {
    siglongjmp(reading->way_out, 1);
  }
  // The instruction runs again, now under the earlier handler; what was sent is sent again.
  sigaction(signal, &earlier, nullptr);
  if (!raised) raise(signal);
}

/// There is a handler as long as any thread reads.
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

using Read = void (*)(void* state, const char* from, std::size_t size) noexcept;

/// A function of its own: nothing here needs a destructor, which the jump would leave out.
bool has_read(Reading& reading, Read read, void* state, const char* from, std::size_t size) {
  if (sigsetjmp(reading.way_out, /*savemask=*/1) != 0) {
    running = nullptr;
    return false;
  }
  running = &reading;
  std::atomic_signal_fence(std::memory_order_seq_cst);
  read(state, from, size);
  std::atomic_signal_fence(std::memory_order_seq_cst);
  running = nullptr;
  return true;
}

}  // namespace

bool read_mapped(Read read, void* state, const char* from, std::size_t size) {
  const Handler handler;
  const auto begin = reinterpret_cast<std::uintptr_t>(from);
  Reading reading{begin, begin + size, {}};
  return has_read(reading, read, state, from, size);
}

bool copy_mapped(void* to, const void* from, std::size_t size) {
  const auto copy = [](void* target, const char* source, std::size_t bytes) noexcept {
    streaming_copy(target, source, bytes);
  };
  return read_mapped(copy, to, static_cast<const char*>(from), size);
}

}  // namespace smp::base
