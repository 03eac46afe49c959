// Workers of the pool: kept when idle, unwound by StepAborted, and given up for good.
#include "server/worker_pool.h"

#include <gtest/gtest.h>

#include <array>
#include <memory>

#include "base/sim_clock.h"
#include "smp/error.h"

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

constexpr base::WaitReason kForThePool{"the test", "", -1, -1};

class WorkerPoolTest : public testing::Test, public base::RankContext {
 protected:
  WorkerPoolTest() { scheduler_.set_simulation(&clock_); }
  ~WorkerPoolTest() override {
    pool_.reset();
    scheduler_.set_simulation(nullptr);
  }
  void on_switch(void*, bool) noexcept override {}
  void describe(const void*, char*, std::size_t) const noexcept override {}

  void make_pool() {
    pool_ = std::make_unique<WorkerPool>(*this, 1 << 20, [this] {
      ++times_idle_;
      idle_.signal();
    });
  }
  void SetUp() override { make_pool(); }

  base::FiberScheduler& scheduler_ = base::FiberScheduler::install();
  base::SimClock clock_{1};
  base::Event idle_;
  int times_idle_ = 0;
  std::unique_ptr<WorkerPool> pool_;
};

TEST_F(WorkerPoolTest, KeepsAWorkerForTheNextTask) {
  int runs = 0;
  for (int i = 0; i < 3; ++i) {
    pool_->launch([&] { ++runs; }, 0);
    EXPECT_EQ(pool_->busy(), 1u);
    idle_.wait(kForThePool);
    EXPECT_EQ(pool_->busy(), 0u);
  }
  EXPECT_EQ(runs, 3);
  EXPECT_EQ(times_idle_, 3);
  EXPECT_EQ(pool_->created(), 1u);
}

TEST_F(WorkerPoolTest, GivesEveryWaitingTaskItsOwnWorker) {
  std::array<base::Event, 4> events;
  for (auto& event : events) {
    pool_->launch([&event] { event.wait(kForThePool); }, 0);
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
  pool_->launch([] { throw StepAborted{}; }, 0);
  idle_.wait(kForThePool);
  bool ran = false;
  pool_->launch([&] { ran = true; }, 0);
  idle_.wait(kForThePool);
  EXPECT_TRUE(ran);
  EXPECT_EQ(pool_->created(), 1u);
}

TEST_F(WorkerPoolTest, RunsTasksOnFibersOfItsRank) {
  base::RankContext* seen = nullptr;
  base::Priority priority = 0;
  pool_->launch(
      [&] {
        seen = base::current_rank();
        priority = base::current_fiber()->priority;
      },
      17);
  idle_.wait(kForThePool);
  EXPECT_EQ(seen, this);
  EXPECT_EQ(priority, 17);
}

TEST_F(WorkerPoolTest, DoesNotCountAWorkerThatIsGivenUp) {
  {
    const ExpectedLeak worker;  // its fiber never ends
    pool_->launch([&] { pool_->give_up(); }, 0);
  }
  idle_.wait(kForThePool);
  EXPECT_EQ(pool_->busy(), 0u);
  EXPECT_EQ(pool_->given_up(), 1u);
  pool_->launch([] {}, 0);
  idle_.wait(kForThePool);
  EXPECT_EQ(pool_->created(), 2u);
}

}  // namespace
}  // namespace smp::server
