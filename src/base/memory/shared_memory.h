// base/memory/shared_memory.h: memory that processes of one machine share, and that has no name:
// nothing can be left behind, whatever ends them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace smp::base {

/// Anonymous memory behind a descriptor (memfd), which other processes open through /proc. It
/// counts as memory of the processes and not as /dev/shm, which may be small. Threads: as memory.
class SharedMemory {
 public:
  /// The address by which another process of this machine finds the memory, as long as its maker
  /// offers it.
  struct Address {
    std::int64_t process = 0;
    std::int64_t descriptor = -1;
    std::uint64_t file = 0;  ///< what the descriptor must be; elsewhere it is something else
  };

  /// Makes memory of `bytes` zeros; nothing if the machine refuses: then errno says why.
  static std::optional<SharedMemory> make(std::size_t bytes) noexcept;
  enum class Access : bool { kRead, kReadAndWrite };
  /// Maps the memory at `address`; nothing if that is of another machine or container, or not
  /// offered: then errno says why. A write to memory opened for reading ends the process (SIGSEGV).
  static std::optional<SharedMemory> open(const Address& address, std::size_t bytes,
                                          Access access = Access::kReadAndWrite) noexcept;
  ~SharedMemory();
  SharedMemory(SharedMemory&& other) noexcept;
  SharedMemory& operator=(SharedMemory&& other) noexcept;

  /// The address of the memory. Others can open it as long as this object came from make() and is
  /// offered.
  [[nodiscard]] const Address& address() const noexcept { return address_; }
  /// Stops offering the memory, once all who need it have opened it: it ends with the last process
  /// that maps it.
  void stop_offering() noexcept;
  /// Leaves the memory out of core dumps: it is much address space, and each process that maps it
  /// would write all of it.
  void keep_from_dumps() const noexcept;
  /// The bytes of the memory; they begin on a page boundary.
  [[nodiscard]] std::span<std::byte> bytes() const noexcept { return bytes_; }

 private:
  SharedMemory(std::span<std::byte> bytes, const Address& address)
      : bytes_(bytes), address_(address) {}
  static std::optional<SharedMemory> map(int descriptor, std::size_t bytes, Access access) noexcept;

  std::span<std::byte> bytes_;
  Address address_;
};

}  // namespace smp::base
