// A file that takes the place of another: two writers at once, and what a killed one leaves.
#include "base/replacement_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/files.h"

namespace smp::base {
namespace replacement_file_test {

// A fresh folder per test.
class ReplacementFiles : public testing::Test {
 protected:
  void SetUp() override { create_directories(folder_); }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
      names.push_back(entry.path().filename());
    }
    return names;
  }

  std::string folder_ = concat(testing::TempDir(), "smp_replacement_", ::getpid());
  std::string path_ = folder_ + "/file";
};

/// Of one process here; of containers, whose processes may have one number.
TEST_F(ReplacementFiles, MayBeReplacedByTwoAtOnce) {
  write_file(concat(path_, ".new.", ::getpid()), "of another machine's process of this number");
  ReplacementFile first(path_), second(path_);
  second.write_at(0, "of the second");
  first.write_at(0, "of the first, which is longer");
  second.commit();
  EXPECT_EQ(read_file(path_), "of the second");
  first.commit();
  EXPECT_EQ(read_file(path_), "of the first, which is longer");
  EXPECT_EQ(names().size(), 2u);
}

/// Root could: a model saved to /dev/null took its place, for every process of the machine.
TEST_F(ReplacementFiles, DoNotTakeThePlaceOfPipesAndDevices) {
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  const int reader = ::open(path_.c_str(), O_RDONLY | O_NONBLOCK);
  EXPECT_TRUE(is_device(path_));
  EXPECT_THROW(ReplacementFile file(path_), ResourceError);
  write_file(path_, "through it");
  char text[32] = {};
  EXPECT_EQ(::read(reader, text, sizeof text), 10);
  EXPECT_STREQ(text, "through it");
  ::close(reader);
  EXPECT_EQ(names(), std::vector<std::string>{"file"});

  for (const char* device : {"/dev/null", "/dev/stdout", "/proc/self/status"}) {
    EXPECT_TRUE(is_device(device)) << device;
  }
  EXPECT_THROW(write_file("/dev/full", "x"), ResourceError);
  for (const auto& other : {folder_, folder_ + "/none", std::string("/dev/shm")}) {
    EXPECT_FALSE(is_device(other)) << other;
  }
}

TEST_F(ReplacementFiles, ThatAreNotCommittedChangeNothing) {
  write_file(path_, "old");
  ReplacementFile(path_).write_at(0, "new");
  EXPECT_EQ(read_file(path_), "old");
  EXPECT_EQ(names(), std::vector<std::string>{"file"});
}

/// As those of write_file(), and of every other program.
TEST_F(ReplacementFiles, AreReadableAsTheUsersMaskSays) {
  const auto mask = ::umask(027);
  write_file(path_, "content");
  ::umask(mask);
  EXPECT_EQ(std::filesystem::status(path_).permissions(),
            static_cast<std::filesystem::perms>(0640));
}

TEST_F(ReplacementFiles, OfAKilledProcessLeaveNothing) {
  const int nameless = ::open(folder_.c_str(), O_WRONLY | O_TMPFILE | O_CLOEXEC, 0600);
  if (nameless < 0) GTEST_SKIP() << "this file system has no files without names";
  ::close(nameless);
  write_file(path_, "old");
  const pid_t child = ::fork();
  if (child == 0) {
    ReplacementFile file(path_);
    file.write_at(0, std::string(1 << 20, 'x'));
    ::raise(SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(names(), std::vector<std::string>{"file"});
  EXPECT_EQ(read_file(path_), "old");
}

}  // namespace replacement_file_test
}  // namespace smp::base
