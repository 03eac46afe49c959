// Memory that another process finds, writes and reads, and that has no name.
#include "base/memory/shared_memory.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <set>
#include <string>

namespace smp::base {
namespace {

std::set<std::string> names_in_shm() {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    names.insert(entry.path());
  }
  return names;
}

/// Exit status of a child that runs `code`.
template <class Code>
int in_child(const Code& code) {
  const auto child = ::fork();
  if (child == 0) ::_exit(code());
  int status = 0;
  ::waitpid(child, &status, 0);
  return WEXITSTATUS(status);
}

TEST(SharedMemory, IsFoundByAnotherProcessThatWritesToIt) {
  auto memory = SharedMemory::make(8192);
  ASSERT_TRUE(memory);
  EXPECT_EQ(memory->bytes()[8191], std::byte{0});
  EXPECT_EQ(in_child([&] {
              auto opened = SharedMemory::open(memory->address(), 8192);
              if (!opened || opened->bytes()[5] != std::byte{0}) return 1;
              opened->bytes()[8191] = std::byte{7};
              return 0;
            }),
            0);
  EXPECT_EQ(memory->bytes()[8191], std::byte{7});
}

/// The kernel ends a process that makes a file longer than it may (`ulimit -f`).
TEST(SharedMemory, IsRefusedBeyondTheLongestFile) {
  EXPECT_EQ(in_child([] {
              const rlimit limit{1 << 20, 1 << 20};
              if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) return 1;
              return SharedMemory::make(2 << 20) || !SharedMemory::make(1 << 20) ? 2 : 0;
            }),
            0);
}

TEST(SharedMemory, IsNotFoundOnceItIsNotOffered) {
  auto memory = SharedMemory::make(64);
  ASSERT_TRUE(memory);
  const auto address = memory->address();
  memory->stop_offering();
  EXPECT_FALSE(SharedMemory::open(address, 64));
  memory->bytes()[0] = std::byte{1};  // and goes on
}

TEST(SharedMemory, OfAnotherFileIsNotTaken) {
  auto memory = SharedMemory::make(64);
  auto other = SharedMemory::make(64);
  ASSERT_TRUE(memory && other);
  auto address = memory->address();
  address.descriptor = other->address().descriptor;
  EXPECT_FALSE(SharedMemory::open(address, 64));
}

TEST(SharedMemory, HasNoName) {
  const auto before = names_in_shm();
  const auto memory = SharedMemory::make(64);
  ASSERT_TRUE(memory);
  EXPECT_EQ(names_in_shm(), before);
}

}  // namespace
}  // namespace smp::base
