// Workers of the pool: kept when idle, unwound by StepAborted, and given up for good.
#include "server/step/worker_pool.h"

#include <gmock/gmock.h>

#include <array>
#include <functional>
#include <memory>

#include "fiber/sim_clock.h"
#include "smp/error.h"
#include "support/refusal.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/lsan_interface.h>
using ExpectedLeak = __lsan::ScopedDisabler;
#else
struct ExpectedLeak {
  ExpectedLeak() {}  // declared, so that an object of it counts as used
};
#endif

namespace smp::server {
namespace {

constexpr fiber::WaitReason kForThePool{"the test", "", -1, -1};

/// Bodies stand for what the test wants done: their number is that of a function.
class WorkerPoolTest : public testing::Test {
 protected:
  WorkerPoolTest() { scheduler_.set_simulation(&clock_); }
  ~WorkerPoolTest() override {
    pool_.reset();
    scheduler_.set_simulation(nullptr);
  }
  void SetUp() override {
    pool_ = std::make_unique<WorkerPool>(
        1 << 20, [this](WorkerTask&& task) { tasks_.at(std::get<BodyTask>(task).microbatch)(); },
        [this] {
          ++times_idle_;
          idle_.signal();
        });
    pool_->inherit_fiber_locals();
  }
  void launch(std::function<void()> task, fiber::Priority priority = 0) {
    tasks_.push_back(std::move(task));
    pool_->launch(BodyTask{static_cast<int>(tasks_.size()) - 1}, priority);
  }

  fiber::Scheduler& scheduler_ = fiber::Scheduler::install();
  fiber::SimClock clock_{1};
  fiber::Event idle_;
  int times_idle_ = 0;
  std::vector<std::function<void()>> tasks_;
  std::unique_ptr<WorkerPool> pool_;
};

TEST_F(WorkerPoolTest, KeepsAWorkerForTheNextTask) {
  int runs = 0;
  for (int i = 0; i < 3; ++i) {
    launch([&] { ++runs; });
    EXPECT_EQ(pool_->busy(), 1u);
    idle_.wait(kForThePool);
    EXPECT_EQ(pool_->busy(), 0u);
  }
  EXPECT_EQ(runs, 3);
  EXPECT_EQ(times_idle_, 3);
  EXPECT_EQ(pool_->created(), 1u);
}

TEST_F(WorkerPoolTest, GivesEveryWaitingTaskItsOwnWorker) {
  std::array<fiber::Event, 4> events;
  for (auto& event : events) {
    launch([&event] { event.wait(kForThePool); });
  }
  scheduler_.yield();
  EXPECT_EQ(pool_->busy(), 4u);
  for (auto& event : events) event.signal();
  idle_.wait(kForThePool);
  EXPECT_EQ(pool_->created(), 4u);
  EXPECT_EQ(pool_->most_busy(), 4u);
  EXPECT_EQ(times_idle_, 1);
}

TEST_F(WorkerPoolTest, SwallowsStepAborted) {
  launch([] { throw StepAborted{}; });
  idle_.wait(kForThePool);
  bool ran = false;
  launch([&] { ran = true; });
  idle_.wait(kForThePool);
  EXPECT_TRUE(ran);
  EXPECT_EQ(pool_->created(), 1u);
}

const base::FiberLocal<const int> test_local;

TEST_F(WorkerPoolTest, RunsTasksWithItsOwnersLocalsAndTheirPriority) {
  const int mark = 0;
  const base::FiberLocalScope<const int> local(test_local, &mark);
  pool_->inherit_fiber_locals();
  const int* seen = nullptr;
  fiber::Priority priority = 0;
  launch(
      [&] {
        seen = test_local.get();
        priority = fiber::current_fiber()->priority;
      },
      17);
  idle_.wait(kForThePool);
  EXPECT_EQ(seen, &mark);
  EXPECT_EQ(priority, 17);
}

TEST_F(WorkerPoolTest, DoesNotCountAWorkerThatIsGivenUp) {
  {
    const ExpectedLeak worker;  // its fiber never ends
    launch([&] { pool_->give_up(); });
  }
  idle_.wait(kForThePool);
  EXPECT_EQ(pool_->busy(), 0u);
  EXPECT_EQ(pool_->given_up(), 1u);
  launch([] {});
  idle_.wait(kForThePool);
  EXPECT_EQ(pool_->created(), 2u);
}

TEST_F(WorkerPoolTest, IsAsItWasWhenAWorkerCannotBeMade) {
  const auto live = scheduler_.live_fibers();
  WorkerPool huge(
      std::size_t{1} << 46, [](WorkerTask&&) {}, [] {});
  for (int i = 0; i < 3; ++i) {
    EXPECT_THAT(refusal<ResourceError>([&] { huge.launch(BodyTask{0}, 0); }),
                testing::HasSubstr("no memory for the stack"));
  }
  EXPECT_EQ(huge.busy(), 0u);
  EXPECT_EQ(huge.created(), 0u);
  EXPECT_EQ(huge.launched(), 0u);
  EXPECT_EQ(scheduler_.live_fibers(), live);
  launch([] {});
  idle_.wait(kForThePool);
}

}  // namespace
}  // namespace smp::server
