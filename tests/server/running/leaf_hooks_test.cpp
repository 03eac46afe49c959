// Hooks of leaves know for which microbatch they run, whatever other fibers do meanwhile.
#include "server/running/leaf_hooks.h"

#include <gtest/gtest.h>

#include "fiber/scheduler.h"

namespace smp::server {
namespace leaf_hooks_test {

struct NoPasses final : OwnPasses {
  bool take(torch::autograd::AccumulateGrad&, const at::Tensor&) override { return false; }
};

int microbatch_of_hooks() {
  const auto* hooks = LeafHooks::current();
  return hooks == nullptr ? -1 : static_cast<int>(hooks->microbatch());
}

TEST(LeafHooks, AreTheInnermostOfTheFiber) {
  fiber::Scheduler::install();
  NoPasses passes;
  EXPECT_EQ(microbatch_of_hooks(), -1);
  {
    const LeafHooks outer(3, 0, passes);
    EXPECT_EQ(microbatch_of_hooks(), 3);
    {
      const LeafHooks inner(1, 7, passes);
      EXPECT_EQ(microbatch_of_hooks(), 1);
      EXPECT_EQ(LeafHooks::current()->leaf(), 7u);
      EXPECT_EQ(&LeafHooks::current()->passes(), &passes);
    }
    EXPECT_EQ(microbatch_of_hooks(), 3);
  }
  EXPECT_EQ(microbatch_of_hooks(), -1);
}

// They begin and end in any order.
TEST(LeafHooks, AreNotThoseOfAnotherFiber) {
  auto& scheduler = fiber::Scheduler::install();
  NoPasses passes;
  static constexpr fiber::WaitReason kTest{"the test", "", -1, -1};
  fiber::Event begun, ended, second_done, first_done;
  scheduler.spawn(
      [&] {
        const LeafHooks hooks(1, 0, passes);
        begun.signal();
        second_done.wait(kTest);
        EXPECT_EQ(microbatch_of_hooks(), 1);
        first_done.signal();
      },
      {}, 1 << 20, 0);
  begun.wait(kTest);
  EXPECT_EQ(microbatch_of_hooks(), -1);
  scheduler.spawn(
      [&] {
        const LeafHooks hooks(2, 0, passes);
        EXPECT_EQ(microbatch_of_hooks(), 2);
        second_done.signal();
        first_done.wait(kTest);
        EXPECT_EQ(microbatch_of_hooks(), 2) << "the first ended before";
        ended.signal();
      },
      {}, 1 << 20, 0);
  ended.wait(kTest);
  EXPECT_EQ(microbatch_of_hooks(), -1);
}

}  // namespace leaf_hooks_test
}  // namespace smp::server
