// Files in parts: what is read, what tells one from another, and what cannot be read.
#include "base/input_file.h"

#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/check.h"
#include "support/refusal.h"

namespace smp::base {
namespace {

using testing::HasSubstr;

class InputFiles : public testing::Test {
 protected:
  ~InputFiles() override { std::filesystem::remove(path_); }
  void write(const std::string& bytes) const {
    std::ofstream(path_, std::ios::binary | std::ios::trunc) << bytes;
  }
  static std::string numbered(std::size_t size) {
    std::string bytes(size, '\0');
    for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<char>(i % 251);
    return bytes;
  }

  const std::string path_ = concat(testing::TempDir(), "smp_input_", ::getpid());
};

TEST_F(InputFiles, AreReadInParts) {
  const auto bytes = numbered(1'000'003);
  write(bytes);
  const InputFile file(path_);
  EXPECT_EQ(file.size(), bytes.size());
  for (const std::size_t begin : {0u, 1u, 999'999u}) {
    std::string read;
    file.read_parts(begin, bytes.size() - begin, [&](std::string_view part) { read += part; });
    EXPECT_TRUE(read == bytes.substr(begin)) << begin;
    EXPECT_EQ(refusal([&] { file.require_readable(begin, bytes.size() - begin); }), "accepted");
  }
  EXPECT_EQ(refusal([&] { file.require_readable(bytes.size(), 0); }), "accepted");
}

TEST_F(InputFiles, ThatWereCutAreSaidToBe) {
  write(numbered(600'000));
  const InputFile file(path_);
  std::filesystem::resize_file(path_, 500'000);
  EXPECT_EQ(refusal([&] { file.require_readable(0, 500'000); }), "accepted");
  const auto text = HasSubstr(concat("cannot read ", path_, ": it ends at byte 500000, 100000 "));
  EXPECT_THAT(refusal([&] { file.require_readable(10, 599'990); }), text);
  EXPECT_THAT(refusal([&] { file.read_parts(0, 600'000, [](std::string_view) {}); }),
              HasSubstr("it ends at byte 500000"));
}

TEST_F(InputFiles, KnowWhichTheyAre) {
  write("one");
  const auto first = InputFile(path_).identity();
  EXPECT_EQ(InputFile(path_).identity(), first);
  const auto other = path_ + ".other";
  std::filesystem::copy_file(path_, other);
  EXPECT_NE(InputFile(other).identity(), first);
  std::filesystem::rename(other, path_);
  EXPECT_NE(InputFile(path_).identity(), first);
  const auto second = InputFile(path_).identity();
  std::filesystem::last_write_time(path_, std::filesystem::file_time_type());
  EXPECT_NE(InputFile(path_).identity(), second);
}

/// Opening a pipe waits until somebody writes to it, which may be never.
TEST_F(InputFiles, ThatArePipesAreRefusedAtOnce) {
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  EXPECT_EQ(refusal([&] { InputFile file(path_); }),
            concat("cannot read ", path_, ": it is no file"));
}

}  // namespace
}  // namespace smp::base
