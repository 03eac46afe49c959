// Cores are one process's, from the claim to the end.
#include "d2d/wires/neuron/neuron_runtime.h"

#include <gmock/gmock.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <string>

#include "d2d/wires/neuron/neuron_pool.h"
#include "d2d/wires/neuron/played_neuron.h"
#include "smp/error.h"
#include "support/refusal.h"

namespace smp::d2d {
namespace neuron_runtime_test {

using testing::AllOf;
using testing::HasSubstr;

constexpr GlobalRank kRank(3);
constexpr base::Nanoseconds kShort = 30 * base::kMillisecond;

TEST(NeuronRuntime, ClaimsItsCoresOnly) {
  for (const int minor : kPlayedReleases) {
    PlayedNeuron neuron(minor);
    NeuronRuntime runtime(neuron.library(), kRank, neuron.claim(2, 4));
    EXPECT_STREQ(std::getenv("NEURON_RT_VISIBLE_CORES"), "4-5");
    const NeuronPool last(runtime, RelativeCore(1), 1024);
    EXPECT_THAT(refusal([&] { NeuronPool(runtime, RelativeCore(2), 1024); }),
                HasSubstr("core 2 of the 2"));
  }
}

TEST(NeuronRuntime, RefusesCallsAfterItsEnd) {
  PlayedNeuron neuron(34);
  NeuronRuntime runtime(neuron.library(), kRank, neuron.claim(1));
  runtime.require_usable("nrt_x");
  runtime.close();
  runtime.close();
  EXPECT_THAT(refusal<PeerLostError>([&] { runtime.require_usable("nrt_x"); }),
              AllOf(HasSubstr("rank 3"), HasSubstr("nrt_x after"), HasSubstr("closed")));
}

TEST(NeuronRuntime, IsOneOfAProcess) {
  PlayedNeuron neuron(34);
  const NeuronRuntime runtime(neuron.library(), kRank, neuron.claim(1));
  EXPECT_THAT(refusal([&] { NeuronRuntime(neuron.library(), kRank, neuron.claim(1, 2)); }),
              HasSubstr("claimed Neuron cores already (0)"));
}

TEST(NeuronRuntime, StartsAgainOnlyWhereTheReleaseCan) {
  for (const int minor : kPlayedReleases) {
    PlayedNeuron neuron(minor);
    const auto live = [&] { NeuronRuntime(neuron.library(), kRank, neuron.claim(1)).close(); };
    EXPECT_EQ(refusal(live), "accepted");
    if (minor >= 34) {
      EXPECT_EQ(refusal(live), "accepted");
    } else {
      EXPECT_THAT(refusal(live), AllOf(HasSubstr("starts once only"), HasSubstr("2.34")));
    }
  }
}

/// A status says that the core is gone for good.
TEST(NeuronRuntime, CallsNothingAfterACoreWasLost) {
  PlayedNeuron neuron(34);
  NeuronRuntime runtime(neuron.library(), kRank, neuron.claim(1));
  neuron.knobs().fail_call = neuron.counters().calls;
  neuron.knobs().fail_status = 101;
  const auto allocate = [&] { NeuronPool(runtime, RelativeCore(0), 1024); };
  EXPECT_THAT(refusal<PeerLostError>(allocate),
              AllOf(HasSubstr("NRT_EXEC_UNIT_UNRECOVERABLE (101)"), HasSubstr("end the process")));
  const auto calls = neuron.counters().calls;
  EXPECT_THAT(refusal<PeerLostError>(allocate), HasSubstr("after a Neuron core was lost"));
  EXPECT_EQ(neuron.counters().calls, calls);
}

TEST(NeuronRuntime, IsRefusedToAForkedChild) {
  PlayedNeuron neuron(34);
  NeuronRuntime runtime(neuron.library(), kRank, neuron.claim(1));
  const pid_t child = ::fork();
  if (child == 0) {
    const auto text = refusal([&] { runtime.require_usable("nrt_x"); });
    runtime.close();  // does nothing: the cores are its parent's
    ::_exit(text.find("forked") != std::string::npos && runtime.is_closed() ? 0 : 1);
  }
  int status = 1;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(refusal([&] { NeuronPool(runtime, RelativeCore(0), 1024); }), "accepted");
}

/// A machine that processes share, with another one that has its cores 0 and 1.
class NeuronRuntimeOfTwo : public testing::Test {
 protected:
  void SetUp() override {
    file_ = base::concat("/dev/shm/smp_played_nrt_", ::getpid());
    ::setenv("PLAYED_NRT_MACHINE", file_.c_str(), 1);
    std::array<int, 2> ready{};
    ASSERT_EQ(::pipe(ready.data()), 0);
    other_ = ::fork();
    if (other_ == 0) {
      PlayedNeuron neuron(34);
      const NeuronRuntime runtime(neuron.library(), GlobalRank(9), neuron.claim(2));
      if (::write(ready[1], "r", 1) != 1) ::_exit(1);
      for (;;) ::pause();
    }
    char byte = 0;
    ASSERT_EQ(::read(ready[0], &byte, 1), 1);
    ::close(ready[0]);
    ::close(ready[1]);
  }
  void TearDown() override {
    kill_other();
    ::unsetenv("PLAYED_NRT_MACHINE");
    ::unlink(file_.c_str());
  }
  void kill_other() {
    if (other_ <= 0) return;
    ::kill(other_, SIGKILL);
    ::waitpid(other_, nullptr, 0);
    other_ = 0;
  }
  std::string file_;
  pid_t other_ = 0;
};

TEST_F(NeuronRuntimeOfTwo, LeaveEachOtherTheirCores) {
  PlayedNeuron neuron(34);
  EXPECT_THAT(refusal<PeerLostError>(
                  [&] { NeuronRuntime(neuron.library(), kRank, neuron.claim(2, 1), kShort); }),
              AllOf(HasSubstr("rank 3"), HasSubstr("claiming the cores 1-2"),
                    HasSubstr("neuron-ls"), HasSubstr("NRT_FAILURE (1)")));
  EXPECT_EQ(refusal([&] { NeuronRuntime(neuron.library(), kRank, neuron.claim(2, 2), kShort); }),
            "accepted");
}

/// Its cores are free some time after its end.
TEST_F(NeuronRuntimeOfTwo, WaitForCoresOfAProcessThatDied) {
  PlayedNeuron neuron(34);
  kill_other();
  const base::SteadyClock clock;
  const auto start = clock.now();
  EXPECT_EQ(refusal([&] { NeuronRuntime(neuron.library(), kRank, neuron.claim(2)); }), "accepted");
  EXPECT_GE(clock.now() - start, neuron.knobs().release_ms * base::kMillisecond);
}

}  // namespace neuron_runtime_test
}  // namespace smp::d2d
