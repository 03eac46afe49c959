// What refuses memory that processes share is named, with what to do about it.
#include "base/memory/shared_memory_refusal.h"

#include <gmock/gmock.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "base/memory/shared_memory.h"

namespace smp::base {
namespace shared_memory_refusal_test {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr std::size_t kMiB = 1 << 20;

TEST(SharedMemoryRefusal, OfAFileThatIsTooLongNamesTheLimit) {
  const auto refusal = refusal_to_make(EFBIG, 12 * kMiB, 4 * kMiB);
  EXPECT_EQ(refusal.reason, "File too large (12 MiB are needed, and `ulimit -f` allows 4 MiB)");
  EXPECT_THAT(refusal.remedy, HasSubstr("`ulimit -f unlimited`"));
}

TEST(SharedMemoryRefusal, NamesLargeSizesInGibibytes) {
  EXPECT_THAT(refusal_to_make(EFBIG, 24000 * kMiB, 1536 * kMiB).reason,
              AllOf(HasSubstr("(23.4 GiB are"), HasSubstr("allows 1.5 GiB)")));
}

TEST(SharedMemoryRefusal, HasARemedyForEachLimit) {
  EXPECT_THAT(refusal_to_make(ENOMEM, kMiB, -1).reason,
              AllOf(HasSubstr("Cannot allocate memory"), HasSubstr("1 MiB")));
  EXPECT_THAT(refusal_to_make(ENOMEM, kMiB, -1).remedy, HasSubstr("ulimit -v"));
  EXPECT_THAT(refusal_to_make(EMFILE, kMiB, -1).remedy, HasSubstr("ulimit -n"));
  EXPECT_THAT(refusal_to_make(EPERM, kMiB, -1).remedy, HasSubstr("seccomp"));
  EXPECT_THAT(refusal_to_make(EIO, kMiB, -1).reason, HasSubstr("Input/output error"));
  EXPECT_THAT(refusal_to_make(EIO, kMiB, -1).remedy, IsEmpty());
  EXPECT_THAT(refusal_to_open(EACCES).reason,
              AllOf(HasSubstr("/proc"), HasSubstr("Permission denied")));
  EXPECT_THAT(refusal_to_open(EACCES).remedy, HasSubstr("in one container"));
  EXPECT_THAT(refusal_to_open(EMFILE).remedy, HasSubstr("ulimit -n"));
}

/// What SharedMemory leaves behind is what these are asked with.
TEST(SharedMemoryRefusal, TellsWhatSharedMemoryWasRefusedFor) {
  const auto child = ::fork();
  if (child == 0) {
    const rlimit limit{kMiB, kMiB};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    errno = 0;
    const bool made = SharedMemory::make(2 * kMiB).has_value();
    ::_exit(!made && errno == EFBIG && longest_file() == static_cast<std::int64_t>(kMiB) ? 0 : 1);
  }
  int status = 1;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 0);

  auto memory = SharedMemory::make(64);
  const auto other = SharedMemory::make(64);
  ASSERT_TRUE(memory && other);
  auto address = memory->address();
  address.descriptor = other->address().descriptor;
  EXPECT_FALSE(SharedMemory::open(address, 64));
  EXPECT_EQ(errno, ESTALE);
  memory->stop_offering();
  EXPECT_FALSE(SharedMemory::open(memory->address(), 64));
  EXPECT_EQ(errno, ENOENT);
}

TEST(SharedMemoryRefusal, WithoutALimitThereIsNone) {
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &limit), 0);
  if (limit.rlim_cur != RLIM_INFINITY) GTEST_SKIP() << "this process has a limit";
  EXPECT_EQ(longest_file(), -1);
}

}  // namespace shared_memory_refusal_test
}  // namespace smp::base
