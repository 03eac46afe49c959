// Files that are memory.
#include "base/memory/mapped_file.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>

#include "base/files.h"
#include "smp/error.h"
#include "support/refusal.h"

namespace smp::base {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string path_of_test() {
  return std::filesystem::temp_directory_path() / ("smp-mapped-" + std::to_string(::getpid()));
}

TEST(MappedFile, HoldsWhatIsWrittenToItsMemory) {
  const auto path = path_of_test();
  write_file(path, "what was there before");
  {
    const MappedFile file(path, 10'000);
    ASSERT_EQ(file.bytes().size(), 10'000u);
    std::memcpy(file.bytes().data() + 9'990, "0123456789", 10);
    EXPECT_EQ(read_file(path), std::string(9'990, '\0') + "0123456789") << "at once";
  }
  EXPECT_EQ(read_file(path).substr(9'990), "0123456789");
  std::filesystem::remove(path);
}

TEST(MappedFile, SaysWhyItCannotBeMade) {
  EXPECT_THAT(refusal<ResourceError>([] { MappedFile("/nowhere/a", 10); }),
              HasSubstr("cannot make /nowhere/a: No such file"));
  const auto path = path_of_test();
  EXPECT_THAT(refusal<ResourceError>([&] { MappedFile(path, std::size_t{1} << 60); }),
              AllOf(HasSubstr("cannot make room for"), HasSubstr(path)));
  EXPECT_FALSE(file_exists(path));
}

}  // namespace
}  // namespace smp::base
