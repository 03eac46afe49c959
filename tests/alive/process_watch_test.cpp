// The end of another process is noticed at once, however it ends, and whoever its parent is.
#include "alive/process_watch.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <mutex>

#include "base/clock.h"

namespace smp::base {
namespace process_watch_test {

/// A process that waits for a signal.
class Sleeper {
 public:
  Sleeper() : process_(fork()) {
    if (process_ > 0) return;
    for (;;) pause();
  }
  ~Sleeper() {
    kill();
    waitpid(process_, nullptr, 0);
  }
  void kill() const { ::kill(process_, SIGKILL); }
  std::int64_t process() const { return process_; }

 private:
  const pid_t process_;
};

/// What a watch has told.
class Told {
 public:
  void add(std::size_t which) {
    const std::lock_guard lock(mutex_);
    which_.push_back(which);
    changed_.notify_all();
  }
  /// At most ten seconds.
  std::vector<std::size_t> wait_for(std::size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::seconds(10), [&] { return which_.size() >= count; });
    return which_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::size_t> which_;
};

TEST(ProcessWatch, TellsWhichProcessesEnded) {
  const Sleeper first, second, third;
  Told told;
  const ProcessWatch watch({first.process(), getpid(), second.process(), third.process()},
                           [&](std::size_t which) { told.add(which); });
  third.kill();
  EXPECT_EQ(told.wait_for(1), (std::vector<std::size_t>{3}));
  first.kill();
  EXPECT_EQ(told.wait_for(2), (std::vector<std::size_t>{3, 0})) << "each once";
}

/// As where the launcher that should reap it is stopped.
TEST(ProcessWatch, NeedsNobodyWhoReapsTheProcess) {
  const Sleeper sleeper;
  EXPECT_FALSE(has_ended(sleeper.process()));
  Told told;
  const SteadyClock clock;
  const ProcessWatch watch({sleeper.process()}, [&](std::size_t which) { told.add(which); });
  const auto start = clock.now();
  sleeper.kill();
  ASSERT_EQ(told.wait_for(1).size(), 1u);
  EXPECT_LT(clock.now() - start, 5 * kSecond) << "milliseconds, where the machine has time";
  EXPECT_TRUE(has_ended(sleeper.process()));
}

TEST(ProcessWatch, KnowsThoseThatEndedBefore) {
  std::int64_t gone = 0;
  {
    const Sleeper sleeper;
    gone = sleeper.process();
  }
  EXPECT_TRUE(has_ended(gone));
  Told told;
  const ProcessWatch watch({gone}, [&](std::size_t which) { told.add(which); });
  EXPECT_EQ(told.wait_for(1), (std::vector<std::size_t>{0}));
}

TEST(ProcessWatch, IsLeftAtOnceWhileAllLive) {
  const Sleeper sleeper;
  Told told;
  const SteadyClock clock;
  const auto start = clock.now();
  {
    const ProcessWatch watch({sleeper.process()}, [&](std::size_t which) { told.add(which); });
  }
  EXPECT_LT(clock.now() - start, 5 * kSecond);
  sleeper.kill();
  EXPECT_TRUE(told.wait_for(0).empty());
}

TEST(ProcessWatch, LeavesErrnoAsItWas) {
  errno = EXDEV;
  EXPECT_FALSE(has_ended(getpid()));
  EXPECT_EQ(errno, EXDEV);
}

}  // namespace process_watch_test
}  // namespace smp::base
