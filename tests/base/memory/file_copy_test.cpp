// Parts of files by their pages: the same bytes as by reading, and the same words where they end.
#include "base/memory/file_copy.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "base/check.h"
#include "support/refusal.h"

namespace smp::base {
namespace {

constexpr std::size_t kSize = (9 << 20) + 4321;  // several windows

class FileCopies : public testing::Test {
 protected:
  FileCopies() : bytes_(kSize, '\0') {
    for (std::size_t i = 0; i < bytes_.size(); ++i) bytes_[i] = static_cast<char>(i % 251 + 1);
    std::ofstream(path_, std::ios::binary) << bytes_;
  }
  ~FileCopies() override { std::filesystem::remove(path_); }

  static std::string copied(const InputFile& file, std::size_t offset, std::size_t size) {
    std::string bytes(size, '\0');
    copy_from(file, offset, bytes.data(), size);
    return bytes;
  }

  /// What is seen of a file in place: a sum that depends on the order, and how many bytes.
  struct Sum {
    std::uint64_t sum = 0, size = 0;
    void add(std::string_view bytes) noexcept {
      for (const char byte : bytes) sum = sum * 31 + static_cast<unsigned char>(byte);
      size += bytes.size();
    }
    bool operator==(const Sum&) const = default;
  };
  static Sum seen(const InputFile& file, std::size_t offset, std::size_t size) {
    Sum sum;
    read_in_place(file, offset, size, sum);
    return sum;
  }
  Sum expected(std::size_t offset, std::size_t size) const {
    Sum sum;
    sum.add(std::string_view(bytes_).substr(offset, size));
    return sum;
  }

  std::string bytes_;
  const std::string path_ = concat(testing::TempDir(), "smp_file_copy_", ::getpid());
};

TEST_F(FileCopies, AreTheBytesOfTheFile) {
  const InputFile file(path_);
  for (const std::size_t offset : {0u, 1u, 4095u, 4096u, 1'234'567u}) {
    for (const std::size_t size : {0u, 1u, 300'000u, 4u << 20, (8u << 20) + 3}) {
      if (offset + size > kSize) continue;
      EXPECT_TRUE(copied(file, offset, size) == bytes_.substr(offset, size))
          << size << " from " << offset;
      EXPECT_EQ(seen(file, offset, size), expected(offset, size)) << size << " from " << offset;
    }
  }
  EXPECT_TRUE(copied(file, 77, kSize - 77) == bytes_.substr(77));
}

/// At the border of a page, and within one, behind which its page has zeros.
TEST_F(FileCopies, OfFilesThatWereCutAreRefused) {
  for (const std::size_t end : {6u << 20, (6u << 20) + 100, 1u << 20, 300'001u}) {
    std::ofstream(path_, std::ios::binary | std::ios::trunc) << bytes_;
    const InputFile file(path_);
    std::filesystem::resize_file(path_, end);
    EXPECT_THAT(refusal([&] { copied(file, 11, kSize - 11); }),
                testing::HasSubstr(concat("cannot read ", path_, ": it ends at byte ", end)));
    EXPECT_TRUE(copied(file, 0, end) == bytes_.substr(0, end)) << end;
    EXPECT_THAT(refusal([&] { seen(file, 11, kSize - 11); }),
                testing::HasSubstr(concat("cannot read ", path_, ": it ends at byte ", end)));
    EXPECT_EQ(seen(file, 0, end), expected(0, end)) << end;
  }
}

TEST_F(FileCopies, AreOfTheValuesOfNow) {
  const InputFile file(path_);
  EXPECT_FALSE(file.has_changed());
  std::filesystem::last_write_time(path_, std::filesystem::file_time_type());
  EXPECT_TRUE(file.has_changed());
  std::fstream(path_, std::ios::in | std::ios::out | std::ios::binary).seekp(5'000'000).put('!');
  bytes_[5'000'000] = '!';
  EXPECT_TRUE(copied(file, 0, kSize) == bytes_);
  EXPECT_EQ(seen(file, 0, kSize), expected(0, kSize));
}

}  // namespace
}  // namespace smp::base
