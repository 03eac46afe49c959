// base/memory/cross_memory_test.cpp: what another process holds, and processes that do not let us.
#include "base/memory/cross_memory.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <vector>

namespace smp::base {
namespace cross_memory_test {

std::uint64_t address_of(const void* place) { return reinterpret_cast<std::uint64_t>(place); }

TEST(CrossMemory, IsReadAsItIs) {
  std::vector<int> numbers(100'000, 7);
  std::vector<int> copy(numbers.size());
  numbers.back() = 9;
  ASSERT_TRUE(read_process_memory(::getpid(), address_of(numbers.data()),
                                  std::as_writable_bytes(std::span(copy))));
  EXPECT_EQ(copy, numbers);
}

TEST(CrossMemory, OfAChildIsItsOwn) {
  static volatile int number = 1;
  int told[2];
  ASSERT_EQ(::pipe(told), 0);
  const auto child = ::fork();
  if (child == 0) {
    number = 2;
    const char done = 1;
    static_cast<void>(::write(told[1], &done, 1));
    ::pause();
    std::_Exit(0);
  }
  char done = 0;
  ASSERT_EQ(::read(told[0], &done, 1), 1);
  int seen = 0;
  const bool allowed = read_process_memory(child, address_of(const_cast<int*>(&number)),
                                           std::as_writable_bytes(std::span(&seen, 1)));
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  if (allowed) {  // not everywhere
    EXPECT_EQ(seen, 2);
  }
  EXPECT_EQ(number, 1);
  EXPECT_FALSE(read_process_memory(child, address_of(const_cast<int*>(&number)),
                                   std::as_writable_bytes(std::span(&seen, 1))))
      << "it is gone";
}

TEST(CrossMemory, ThatIsNotThereIsNotRead) {
  std::byte place[8];
  EXPECT_FALSE(read_process_memory(::getpid(), 0, place));
  EXPECT_TRUE(read_process_memory(::getpid(), 0, {})) << "nothing to read";
}

}  // namespace cross_memory_test
}  // namespace smp::base
