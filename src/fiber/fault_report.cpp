// fiber/fault_report.cpp: a handler of signals; only what is safe in one is called.
#include "fiber/fault_report.h"

#include <unistd.h>
#include <csignal>
#include <cstdio>
#include <cstdlib>

#include <algorithm>
#include <array>
#include <cstdint>

#include "alive/pulse.h"
#include "fiber/stack_pool.h"

namespace smp::fiber {
namespace {

Describe describe_hit = nullptr;

#if !defined(__SANITIZE_ADDRESS__)  // which reports faults and overflows itself

struct Fault {
  int signal;
  const char* name;
  struct sigaction previous {};
};

std::array faults{Fault{SIGSEGV, "a segmentation fault (SIGSEGV)"},
                  Fault{SIGBUS, "a bus error (SIGBUS: a mapped file or /dev/shm is full or cut)"},
                  Fault{SIGFPE, "a wrong integer operation (SIGFPE)"},
                  Fault{SIGILL, "an instruction that this processor does not have (SIGILL)"},
                  Fault{SIGABRT, "abort() (SIGABRT)"}};

/// True if the signal was sent by kill() or the like, rather than raised by an instruction.
bool is_sent(const siginfo_t& info) noexcept { return info.si_code <= 0; }

int explain(const Fault& fault, const siginfo_t& info, const char* who, char* text,
            std::size_t size) noexcept {
  const auto address = reinterpret_cast<std::uintptr_t>(info.si_addr);
  if (fault.signal == SIGSEGV && !is_sent(info) && in_stack_guard(address)) {
    return std::snprintf(text, size,
                         "smp: %s: the fiber's stack overflowed; raise fiber_stack_bytes "
                         "(--smp.fiber_stack_bytes), or use less stack in this module\n",
                         who);
  }
  if (is_sent(info) && info.si_pid != ::getpid()) {
    return std::snprintf(text, size,
                         "smp: %s: ended by signal %d, which process %d sent; this was no fault of "
                         "the program\n",
                         who, fault.signal, static_cast<int>(info.si_pid));
  }
  if (is_sent(info)) {
    return std::snprintf(text, size, "smp: %s: ended by %s\n", who, fault.name);
  }
  return std::snprintf(text, size, "smp: %s: ended by %s at address 0x%llx\n", who, fault.name,
                       static_cast<unsigned long long>(address));
}

void on_fault(int signal, siginfo_t* info, void*) {
  const auto fault = std::find_if(faults.begin(), faults.end(),
                                  [signal](const Fault& one) { return one.signal == signal; });
  char who[512] = "";
  if (describe_hit != nullptr) describe_hit(who, sizeof who);
  char text[1024];
  const int length = explain(*fault, *info, *who == '\0' ? "a process" : who, text, sizeof text);
  const auto bytes = std::min(static_cast<std::size_t>(length), sizeof text - 1);
  if (write(STDERR_FILENO, text, bytes) < 0) {  // nobody will read it; the end is the same
  }
  base::own_pulse().spoke = true;
  // Returning runs the faulting instruction again, now under the previous handler; what was sent is
  // sent again.
  sigaction(signal, &fault->previous, nullptr);
  if (is_sent(*info)) raise(signal);
}

void use_alternate_stack() {
  // Never freed: what runs as the process exits may fault as well.
  static thread_local char* alternate = nullptr;
  if (alternate != nullptr) return;
  const std::size_t bytes = 64 * 1024;
  alternate = new char[bytes];
  stack_t stack{};
  stack.ss_sp = alternate;
  stack.ss_size = bytes;
  sigaltstack(&stack, nullptr);
}

void handle_faults() {
  for (auto& fault : faults) {
    struct sigaction action {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaction(fault.signal, &action, &fault.previous);
  }
}

#endif

}  // namespace

void install_fault_report(Describe describe) {
  const bool first = describe_hit == nullptr;
  describe_hit = describe;
#if !defined(__SANITIZE_ADDRESS__)
  use_alternate_stack();
  if (first) handle_faults();
#else
  static_cast<void>(first);
#endif
}

}  // namespace smp::fiber
