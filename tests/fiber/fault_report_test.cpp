// What a process says that a signal ends, and that it ends all the same.
#include "fiber/fault_report.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

namespace smp::fiber {
namespace {

#ifndef __SANITIZE_ADDRESS__  // which reports faults itself

void describe(char* text, std::size_t size) {
  std::snprintf(text, size, "rank 2, module encoder.block.3 (forward), microbatch 1");
}

template <class Fault>
void run(const Fault& fault) {
  install_fault_report(describe);
  fault();
  std::_Exit(0);
}

constexpr const char* kWho = "^smp: rank 2, module encoder.block.3 .forward., microbatch 1: ";

class FaultReportDeathTest : public testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(FaultReportDeathTest, NamesWhatASegmentationFaultHit) {
  static volatile std::uintptr_t address = 16;  // which the compiler need not know
  EXPECT_EXIT(run([] { *reinterpret_cast<volatile int*>(address) = 1; }),
              testing::KilledBySignal(SIGSEGV),
              std::string(kWho) + "ended by a segmentation fault .SIGSEGV. at address 0x10");
}

TEST_F(FaultReportDeathTest, NamesWhatAbortHit) {
  EXPECT_EXIT(run([] { std::abort(); }), testing::KilledBySignal(SIGABRT),
              std::string(kWho) + "ended by abort");
}

/// The parent sends it, so that it is no fault of the child's own.
TEST_F(FaultReportDeathTest, ASignalFromOutsideEndsTheProcessToo) {
  EXPECT_EXIT(run([] {
                const auto parent = ::getpid();
                if (::fork() == 0) {
                  ::kill(parent, SIGSEGV);
                  std::_Exit(0);
                }
                ::sleep(20);
              }),
              testing::KilledBySignal(SIGSEGV),
              std::string(kWho) + "ended by signal 11, which process [0-9]+ sent");
}

#endif

}  // namespace
}  // namespace smp::fiber
