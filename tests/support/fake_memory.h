// tests/support/fake_memory.h: memory at addresses that nobody may use, and where it really is.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <set>
#include <utility>

namespace smp::support {

/// As much address space twice: blocks are named by addresses that no access is allowed to, and
/// their elements are elsewhere. Freed blocks are joined with free neighbours, and the smallest
/// that does is taken. Elements that are read before they are written, or after they are freed,
/// look odd. Threads: any.
class FakeMemory {
 public:
  static constexpr std::size_t kBytes = std::size_t{512} << 20;
  static constexpr std::size_t kAlignment = 512;

  FakeMemory();

  /// @return nullptr for no bytes. @throws c10::Error  there is no room.
  void* allocate(std::size_t bytes);
  void free(void* address);
  /// Where the elements at `address` are; what is not of this memory stays what it is.
  void* real(const void* address) const noexcept;
  /// Bytes of blocks that are taken, and the most there were since forget_most().
  std::size_t live();
  std::size_t most();
  void forget_most();

 private:
  void poison(std::size_t offset, std::size_t size);
  void add_free(std::size_t offset, std::size_t size);
  void remove_free(std::size_t offset, std::size_t size);
  void join(std::size_t offset, std::size_t size);

  std::mutex mutex_;
  char *shown_, *real_;
  std::map<std::size_t, std::size_t> free_, taken_;        // sizes by offset
  std::set<std::pair<std::size_t, std::size_t>> by_size_;  // free ones: size, offset
  std::size_t live_ = 0, most_ = 0;
};

}  // namespace smp::support
