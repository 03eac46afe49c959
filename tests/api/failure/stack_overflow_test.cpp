// A module that needs more stack than a worker fiber has is named.
#include <gtest/gtest.h>
#include <torch/types.h>

#include "api/two_ranks.h"

namespace smp {
namespace stack_overflow_test {

// Uses about `stack_bytes` of stack in frames of a little more than FrameBytes.
template <int FrameBytes>
[[gnu::noinline]] int fill(int stack_bytes) {
  volatile char bytes[FrameBytes];
  bytes[0] = static_cast<char>(stack_bytes);
  const int below = stack_bytes <= 0 ? 0 : fill<FrameBytes>(stack_bytes - FrameBytes);
  return below + bytes[0];
}

/// Compiled without the probes that touch every page of a large frame, as a program may be.
template <int FrameBytes>
[[gnu::noinline, gnu::optimize("no-stack-clash-protection")]] void leap() {
  [[maybe_unused]] volatile char bytes[FrameBytes];
  bytes[0] = 1;
}

constexpr int kStackUsed = 3 << 20;
int fill_with_small_frames() { return fill<256>(kStackUsed); }
int fill_with_frames_larger_than_a_page() { return fill<32 * 1024>(kStackUsed); }

struct DeepImpl : torch::nn::Module {
  explicit DeepImpl(int (*fill_stack)())
      : fill(fill_stack), linear(register_module("linear", nn::Linear(2, 2))) {}
  at::Tensor forward(const at::Tensor& x) {
    fill();
    return linear(x);
  }
  int (*fill)();
  nn::Linear linear;
};
SMP_MODULE(Deep);

struct StackImpl : torch::nn::Module {
  explicit StackImpl(int (*fill_stack)()) : deep(register_module("deep", Deep(fill_stack))) {}
  at::Tensor forward(const at::Tensor& x) { return deep(x); }
  Deep deep;
};
SMP_MODULE(Stack);

void run(std::int64_t stack_bytes, int (*fill_stack)()) {
  Config config;
  config.fiber_stack_bytes = stack_bytes;
  run_local(
      2,
      [&] {
        Stack net(fill_stack);
        DistributedModel model(net);
        model.set_partition("", 0);
        model.set_partition("deep", 1);
        auto step = smp::step([&](at::Tensor x) { return model(x); });
        step(torch::ones({2, 2}));
      },
      config);
}

TEST(StackOverflow, DoesNotHappenWithAStackThatIsLargeEnough) {
  run(8 << 20, fill_with_small_frames);
  run(8 << 20, fill_with_frames_larger_than_a_page);
}

TEST(StackOverflowDeathTest, NamesTheModuleAndTheSetting) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(run(1 << 20, fill_with_small_frames),
               "rank 1, module deep .*stack overflowed; raise fiber_stack_bytes");
}

TEST(StackOverflowDeathTest, SeesFramesThatWouldStepOverAPage) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(run(1 << 20, fill_with_frames_larger_than_a_page),
               "rank 1, module deep .*stack overflowed; raise fiber_stack_bytes");
}

TEST(StackOverflowDeathTest, SeesAFrameThatIsLargerThanTheStack) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  for (auto* frame : {leap<(2 << 20)>, leap<(7 << 20)>}) {
    static void (*fill_at_once)();
    fill_at_once = frame;
    const auto fill_stack = [] {
      fill_at_once();
      return 0;
    };
    EXPECT_DEATH(run(1 << 20, fill_stack),
                 "rank 1, module deep .*stack overflowed; raise fiber_stack_bytes");
  }
}

}  // namespace stack_overflow_test
}  // namespace smp
