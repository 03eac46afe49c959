// A module that needs more stack than a worker fiber has is named.
#include <gtest/gtest.h>
#include <torch/types.h>

#include "api/two_ranks.h"

namespace smp {
namespace {

// Small frames, so that none steps over the guard page.
[[gnu::noinline]] int fill(int depth) {
  volatile char bytes[256];
  bytes[0] = static_cast<char>(depth);
  const int below = depth == 0 ? 0 : fill(depth - 1);
  return below + bytes[0];
}

struct DeepImpl : torch::nn::Module {
  DeepImpl() : linear(register_module("linear", nn::Linear(2, 2))) {}
  at::Tensor forward(const at::Tensor& x) {
    fill(10000);
    return linear(x);
  }
  nn::Linear linear;
};
SMP_MODULE(Deep);

struct TopImpl : torch::nn::Module {
  TopImpl() : deep(register_module("deep", Deep())) {}
  at::Tensor forward(const at::Tensor& x) { return deep(x); }
  Deep deep;
};
SMP_MODULE(Top);

void run(std::int64_t stack_bytes) {
  Config config;
  config.fiber_stack_bytes = stack_bytes;
  run_local(
      2,
      [] {
        Top net;
        DistributedModel model(net);
        model.set_partition("", 0);
        model.set_partition("deep", 1);
        auto step = smp::step([&](at::Tensor x) { return model(x); });
        step(torch::ones({2, 2}));
      },
      config);
}

TEST(StackOverflow, DoesNotHappenWithAStackThatIsLargeEnough) { run(8 << 20); }

TEST(StackOverflowDeathTest, NamesTheModuleAndTheSetting) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(run(1 << 20), "rank 1, module deep .*stack overflowed; raise fiber_stack_bytes");
}

}  // namespace
}  // namespace smp
