// What a log line looks like and who prints it.
#include "base/log.h"

#include <gmock/gmock.h>

#include <cstdlib>

namespace smp::base {
namespace {

// SMP_LOG as `value` (nullptr: unset) while it lives.
class WithLevel {
 public:
  explicit WithLevel(const char* value) {
    if (value == nullptr) {
      unsetenv("SMP_LOG");
    } else {
      setenv("SMP_LOG", value, 1);
    }
  }
  ~WithLevel() { unsetenv("SMP_LOG"); }
};

std::string lines_of(int rank, const char* level) {
  const WithLevel environment(level);
  const LogCapture capture;
  set_log_rank(rank);
  log(LogLevel::kDebug, "d", 1);
  log(LogLevel::kInfo, "i", 2);
  log(LogLevel::kWarning, "w", 3);
  log(LogLevel::kError, "e", 4);
  return capture.text();
}

TEST(Log, RankZeroPrintsFromInfoOn) {
  EXPECT_EQ(lines_of(0, nullptr), "[smp I rank 0] i2\n[smp W rank 0] w3\n[smp E rank 0] e4\n");
}

TEST(Log, OtherRanksPrintWarningsAndErrorsOnly) {
  EXPECT_EQ(lines_of(3, nullptr), "[smp W rank 3] w3\n[smp E rank 3] e4\n");
}

TEST(Log, LevelOfAllRanksComesFromTheEnvironment) {
  EXPECT_EQ(lines_of(3, "debug"),
            "[smp D rank 3] d1\n[smp I rank 3] i2\n[smp W rank 3] w3\n[smp E rank 3] e4\n");
  EXPECT_EQ(lines_of(0, "error"), "[smp E rank 0] e4\n");
  EXPECT_EQ(lines_of(0, "off"), "");
}

TEST(Log, IgnoresALevelItDoesNotKnow) {
  EXPECT_EQ(lines_of(3, "loud"), "[smp W rank 3] w3\n[smp E rank 3] e4\n");
}

TEST(Log, TakesTextAsItIs) {
  const LogCapture capture;
  set_log_rank(0);
  log(LogLevel::kInfo, "100% of {} and %v");
  EXPECT_EQ(capture.text(), "[smp I rank 0] 100% of {} and %v\n");
}

TEST(Log, WarnsOncePerId) {
  const LogCapture capture;
  set_log_rank(1);
  for (int i = 0; i < 3; ++i) warn_once("buffers", "buffer changed in call ", i);
  warn_once("other", "another");
  EXPECT_EQ(capture.text(), "[smp W rank 1] buffer changed in call 0\n[smp W rank 1] another\n");
}

TEST(Log, TellsWhetherALineWouldBeShown) {
  const WithLevel environment(nullptr);
  set_log_rank(1);
  EXPECT_FALSE(log_enabled(LogLevel::kInfo));
  EXPECT_TRUE(log_enabled(LogLevel::kWarning));
}

}  // namespace
}  // namespace smp::base
