// Lines for a person who waits.
#include "base/text/progress.h"

#include <gmock/gmock.h>

#include <chrono>
#include <cstdlib>
#include <thread>

#include "base/log.h"
#include "base/status_line.h"
#include "support/watched_child.h"

namespace smp::base {
namespace {

using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::MatchesRegex;
using testing::Not;

void nap(int milliseconds) { std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds)); }

/// Work of a second whose line may be shown at once.
void load_half(int rank = 0) {
  set_log_rank(rank);
  Progress progress("loading", 8 << 20, Progress::Unit::kBytes, 0);
  progress.at(4 << 20);
  nap(700);
}

TEST(Progress, TellsHowFarAndHowLongStill) {
  using enum Progress::Unit;
  EXPECT_EQ(progress_line("placing", 25, 100, kParts, 10),
            "smp: placing: 25 of 100, 25 %, 30 s left");
  EXPECT_EQ(progress_line("loading", 1 << 30, 4LL << 30, kBytes, 60),
            "smp: loading: 1 GiB of 4 GiB, 25 %, 3 min left");
  EXPECT_EQ(progress_line("loading", 0, 10, kParts, 3.5), "smp: loading: 0 of 10, 0 %, 4 s so far");
  EXPECT_EQ(progress_line("planning", 0, 0, kParts, 3.5), "smp: planning, 4 s so far");
  EXPECT_EQ(progress_line("all", 12, 10, kParts, 1), "smp: all: 10 of 10, 100 %, 0 s left");
  EXPECT_EQ(progress_line(std::string(200, 'x'), 1, 2, kParts, 1).size(), 78u);
}

TEST(Progress, IsOneLineThatIsWrittenOverAndRemoved) {
  EXPECT_THAT(seen_by(Watcher::kTerminal, [] { load_half(); }),
              AllOf(HasSubstr("\r\033[Ksmp: loading: 4 MiB of 8 MiB, 50 %, "), Not(HasSubstr("\n")),
                    EndsWith("\r\033[K")));
}

TEST(Progress, IsSeenThroughALauncher) {
  EXPECT_THAT(seen_by(Watcher::kLauncherOnTerminal, [] { load_half(); }),
              HasSubstr("smp: loading: 4 MiB of 8 MiB"));
}

TEST(Progress, IsNotWrittenToFiles) {
  EXPECT_EQ(seen_by(Watcher::kPipe, [] { load_half(); }), "");
  EXPECT_EQ(seen_by(Watcher::kLauncherOnPipe, [] { load_half(); }), "");
}

TEST(Progress, IsShownOrNotAsTheEnvironmentSays) {
  EXPECT_EQ(seen_by(Watcher::kTerminal,
                    [] {
                      ::setenv("SMP_PROGRESS", "0", 1);
                      load_half();
                    }),
            "");
  EXPECT_THAT(seen_by(Watcher::kPipe,
                      [] {
                        ::setenv("SMP_PROGRESS", "1", 1);
                        load_half();
                      }),
              HasSubstr("smp: loading: 4 MiB"));
}

/// It could not be erased there.
TEST(Progress, IsNotShownOnADumbTerminal) {
  EXPECT_EQ(seen_by(Watcher::kTerminal,
                    [] {
                      ::setenv("TERM", "dumb", 1);
                      load_half();
                    }),
            "");
}

TEST(Progress, FitsANarrowTerminal) {
  EXPECT_THAT(seen_by(Watcher::kTerminal,
                      [] {
                        ::setenv("COLUMNS", "20", 1);
                        load_half();
                      }),
              HasSubstr("\r\033[Ksmp: loading: 4 MiB\r"));
}

TEST(StatusLine, IsCutBetweenCharacters) {
  EXPECT_EQ(fitted_status("abc", 0), "abc");
  EXPECT_EQ(fitted_status("abc", 4), "abc");
  EXPECT_EQ(fitted_status("abc", 3), "ab");
  EXPECT_EQ(fitted_status("\u2588\u2588\u2591", 3), "\u2588\u2588");
  EXPECT_EQ(fitted_status("\u2588", 1), "");
}

TEST(Progress, IsOfTheFirstRankOnly) {
  EXPECT_EQ(seen_by(Watcher::kTerminal, [] { load_half(1); }), "");
}

TEST(Progress, SaysNothingOfWorkThatIsSoonDone) {
  EXPECT_THAT(seen_by(Watcher::kTerminal,
                      [] {
                        Progress progress("loading", 10);
                        nap(300);
                      }),
              Not(HasSubstr("smp:")));
}

/// A line of the log takes its place, and it is shown again below.
TEST(Progress, GivesWayToTheLog) {
  ::setenv("NO_COLOR", "1", 1);
  EXPECT_THAT(seen_by(Watcher::kTerminal,
                      [] {
                        set_log_rank(0);
                        Progress progress("planning", 0, Progress::Unit::kParts, 0);
                        nap(200);
                        log(LogLevel::kWarning, "hot");
                        nap(600);
                      }),
              MatchesRegex("\r.\\[Ksmp: planning, 1 s so far\r.\\[K.smp W rank 0. hot\r\n\r.\\[K"
                           "smp: planning, 1 s so far.*\r.\\[K"));
  ::unsetenv("NO_COLOR");
}

TEST(Progress, OfTwoAtOnceShowsTheFirst) {
  EXPECT_THAT(seen_by(Watcher::kTerminal,
                      [] {
                        set_log_rank(0);
                        Progress outer("outer", 0, Progress::Unit::kParts, 0);
                        {
                          Progress inner("inner", 0, Progress::Unit::kParts, 0);
                          nap(200);
                        }
                        nap(500);
                      }),
              AllOf(HasSubstr("outer"), Not(HasSubstr("inner"))));
}

}  // namespace
}  // namespace smp::base
