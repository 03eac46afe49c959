// Who names a folder that is no run is told which one is.
#include "report/folder/find_runs.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <filesystem>

#include "base/files.h"
#include "report/folder/run_folder.h"
#include "support/refusal.h"

namespace smp::report {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

class FindRuns : public testing::Test {
 protected:
  FindRuns() : parent_(testing::TempDir() + "smp_find_runs_test_" + std::to_string(::getpid())) {}
  ~FindRuns() override { std::filesystem::remove_all(parent_); }

  /// Makes a run whose file was written `hours` ago.
  std::string make(const std::string& name, const char* file, int hours) const {
    const auto folder = parent_ + "/" + name;
    base::create_directories(folder);
    base::write_file(folder + "/" + file, "{}");
    const auto now = std::filesystem::file_time_type::clock::now();
    std::filesystem::last_write_time(folder + "/" + file, now - std::chrono::hours(hours));
    return folder;
  }

  static std::string refusal_of(const std::string& path) {
    return refusal<UsageError>([&] { refuse_run(path, "holds no step"); });
  }

  const std::string parent_;
};

TEST_F(FindRuns, TakesTheNewestByWhatItHolds) {
  EXPECT_EQ(newest_run(parent_), "");
  base::create_directories(parent_ + "/no-run");
  EXPECT_EQ(newest_run(parent_), "");
  make("b", kRunFile, 3);
  const auto newest = make("a", kRunFile, 1);
  make("c", kPlanFile, 2);
  EXPECT_EQ(newest_run(parent_), newest);
}

TEST_F(FindRuns, NamesItToWhoNamesAnother) {
  const auto run = make("run", kRunFile, 1);
  const auto hint = "; the newest run here is " + run;
  for (const auto& path : {parent_, parent_ + "/"}) {
    EXPECT_EQ(refusal_of(path), path + " holds no step" + hint);
  }
  EXPECT_EQ(refusal_of(parent_ + "/rum"), "there is no " + parent_ + "/rum" + hint);
}

TEST_F(FindRuns, SaysWhereRunsComeFromIfThereIsNone) {
  base::create_directories(parent_);
  const auto here = std::filesystem::current_path();
  std::filesystem::current_path(parent_);  // others may have left runs where the test began
  const auto text = refusal_of("run");
  std::filesystem::current_path(here);
  EXPECT_THAT(text, StartsWith("there is no "));
  EXPECT_THAT(text, HasSubstr("smp::RunLog"));
}

}  // namespace
}  // namespace smp::report
