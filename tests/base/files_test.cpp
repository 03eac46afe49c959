// Writing in one step, appending lines, and errors that name path and reason.
#include "base/files.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <filesystem>

#include "base/check.h"
#include "support/refusal.h"

namespace smp::base {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// A fresh folder per test.
class Files : public testing::Test {
 protected:
  void SetUp() override { create_directories(folder_); }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string in(const std::string& name) const { return folder_ + "/" + name; }
  std::size_t entries() const {
    return static_cast<std::size_t>(
        std::distance(std::filesystem::directory_iterator(folder_), {}));
  }

  std::string folder_ = concat(testing::TempDir(), "smp_files_", ::getpid(), "/a/b");
};

TEST_F(Files, ReadsWhatWasWritten) {
  const std::string content(200'000, 'x');
  write_file(in("f"), content, Durability::kSynced);
  EXPECT_EQ(read_file(in("f")), content);
  write_file(in("f"), "");
  EXPECT_EQ(read_file(in("f")), "");
}

TEST_F(Files, LeavesNoTemporaryFileBehind) {
  write_file(in("f"), "one");
  write_file(in("f"), "two");
  EXPECT_EQ(entries(), 1u);
  create_directories(in("folder"));
  EXPECT_THROW(write_file(in("folder"), "x"), ResourceError);
  EXPECT_EQ(entries(), 2u);
}

TEST_F(Files, AppendsLinesAcrossReopening) {
  { AppendFile(in("log")).append_line("one"); }
  { AppendFile(in("log")).append_line("two"); }
  EXPECT_EQ(read_file(in("log")), "one\ntwo\n");
}

TEST_F(Files, TellsANewFolderFromAnOldOne) {
  EXPECT_TRUE(create_new_directory(in("run")));
  EXPECT_FALSE(create_new_directory(in("run")));
  EXPECT_TRUE(file_exists(in("run")));
  EXPECT_FALSE(file_exists(in("other")));
}

TEST_F(Files, NamePathAndReasonInErrors) {
  EXPECT_THAT(refusal<UsageError>([&] { read_file(in("none")); }),
              AllOf(HasSubstr(in("none")), HasSubstr("No such file or directory")));
  write_file(in("long"), "12345");
  EXPECT_EQ(read_file(in("long"), 5), "12345");
  EXPECT_THAT(refusal<UsageError>([&] { read_file(in("long"), 4); }),
              HasSubstr("/long: it has more than 4 bytes"));
  EXPECT_THAT(refusal<UsageError>([&] { read_file(folder_); }), HasSubstr("Is a directory"));
  EXPECT_THAT(refusal<ResourceError>([&] { write_file(in("no/f"), ""); }),
              AllOf(HasSubstr(in("no/f")), HasSubstr("No such file or directory")));
  EXPECT_THAT(refusal<ResourceError>([&] { AppendFile(in("no/f")); }), HasSubstr(in("no/f")));
  write_file(in("file"), "");
  EXPECT_THAT(refusal<ResourceError>([&] { create_directories(in("file/folder")); }),
              AllOf(HasSubstr(in("file/folder")), HasSubstr("Not a directory")));
  EXPECT_THROW(create_new_directory(in("no/folder")), ResourceError);
}

}  // namespace
}  // namespace smp::base
