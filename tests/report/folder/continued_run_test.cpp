// What a job that goes on keeps of the one before it.
#include "report/folder/continued_run.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <filesystem>

#include "base/check.h"
#include "base/files.h"
#include "report/export/event_file.h"
#include "report/folder/run_folder.h"
#include "support/refusal.h"

namespace smp::report {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class ContinuedRun : public testing::Test {
 protected:
  void SetUp() override {
    base::create_directories(folder_);
    RunDescription description;
    description.name = "t5";
    description.started = "2026-11-21T14:05:09Z";
    description.configuration = "{}";
    base::write_file(in(kRunFile), description_to_json(description));
    for (int step = 1; step <= 5; ++step) {
      lines_ += metrics_line({{"step", step}, {"loss", 5.0 / step}}) + "\n";
      records_ += event_record(step, step, {{"loss", 5.0 / step}});
      if (step == 3) {
        kept_lines_ = lines_;
        kept_records_ = records_;
      }
    }
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string in(const std::string& name) const { return folder_ + "/" + name; }

  const std::string folder_ = base::concat(testing::TempDir(), "smp_continued_run_", ::getpid());
  std::string lines_, kept_lines_;
  std::string records_ = event_file_header(0), kept_records_;
};

TEST_F(ContinuedRun, KeepsTheStepsBefore) {
  base::write_file(in(kMetricsFile), lines_ + "{\"st");
  base::write_file(in(kEventFile), records_ + "\x12");
  for (const int rank : {0, 1}) base::write_file(in(ring_file(rank)), "spans");
  EXPECT_EQ(continue_run(folder_, 3), "2026-11-21T14:05:09Z");
  EXPECT_EQ(base::read_file(in(kMetricsFile)), kept_lines_);
  EXPECT_EQ(base::read_file(in(kEventFile)), kept_records_);
  for (const int rank : {0, 1}) EXPECT_FALSE(base::file_exists(in(ring_file(rank))));
}

TEST_F(ContinuedRun, KeepsAllOfAJobThatEndedThere) {
  base::write_file(in(kMetricsFile), lines_);
  base::write_file(in(kEventFile), records_);
  continue_run(folder_, 5);
  EXPECT_EQ(base::read_file(in(kMetricsFile)), lines_);
  EXPECT_EQ(base::read_file(in(kEventFile)), records_);
}

/// The next job writes a new beginning to a file that is not there.
TEST_F(ContinuedRun, NeedsNeitherFile) {
  continue_run(folder_, 3);
  EXPECT_FALSE(base::file_exists(in(kMetricsFile)));
  base::write_file(in(kEventFile), event_file_header(0).substr(0, 9));
  continue_run(folder_, 3);
  EXPECT_FALSE(base::file_exists(in(kEventFile)));
}

TEST_F(ContinuedRun, IsRefusedAsAWholeIfAFileIsBroken) {
  base::write_file(in(kMetricsFile), lines_);
  auto broken = records_;
  broken[40] = static_cast<char>(broken[40] ^ 1);
  base::write_file(in(kEventFile), broken);
  EXPECT_THAT(refusal<UsageError>([&] { continue_run(folder_, 3); }),
              AllOf(HasSubstr(in(kEventFile)), HasSubstr("is broken")));
  EXPECT_EQ(base::read_file(in(kMetricsFile)), lines_);
  EXPECT_EQ(base::read_file(in(kEventFile)), broken);
  base::write_file(in(kEventFile), records_);
  base::write_file(in(kMetricsFile), "{\"st\n" + lines_);
  EXPECT_THAT(refusal<UsageError>([&] { continue_run(folder_, 3); }),
              AllOf(HasSubstr(in(kMetricsFile)), HasSubstr("line 1 is not JSON")));
  EXPECT_EQ(base::read_file(in(kEventFile)), records_);
}

TEST_F(ContinuedRun, IsNoOtherFolder) {
  base::remove_file(in(kRunFile));
  EXPECT_THAT(refusal<UsageError>([&] { continue_run(folder_, 3); }),
              AllOf(HasSubstr("RunLogOptions::continues is "), HasSubstr("holds no run.json"),
                    HasSubstr("leave it empty")));
}

}  // namespace
}  // namespace smp::report
