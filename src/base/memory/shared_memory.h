// base/memory/shared_memory.h: memory that processes of one machine share, and that has no name:
// nothing can be left behind, whatever ends them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace smp::base {

/// Anonymous memory behind a descriptor that others reach through /proc. It counts as memory of the
/// processes and not as /dev/shm, which may be small. Threads: as memory.
class SharedMemory {
 public:
  /// How another process of this machine finds it, as long as its maker offers it.
  struct Address {
    std::int64_t process = 0;
    std::int64_t descriptor = -1;
    std::uint64_t file = 0;  ///< what the descriptor must be; elsewhere it is something else
  };

  /// `bytes` zeros, or nothing if the machine refuses: errno says why, and so it does of open().
  static std::optional<SharedMemory> make(std::size_t bytes) noexcept;
  enum class Access : bool { kRead, kReadAndWrite };
  /// The memory at `address`, or nothing: another machine or container, or it is not offered. Who
  /// writes to memory opened for reading is ended by the machine.
  static std::optional<SharedMemory> open(const Address& address, std::size_t bytes,
                                          Access access = Access::kReadAndWrite) noexcept;
  ~SharedMemory();
  SharedMemory(SharedMemory&& other) noexcept;
  SharedMemory& operator=(SharedMemory&& other) noexcept;

  /// Its maker; where others find it, as long as this is what make() returned, and it is offered.
  [[nodiscard]] const Address& address() const noexcept { return address_; }
  /// All who need it have opened it: from now on it ends with the last process that maps it.
  void stop_offering() noexcept;
  /// Leaves it out of core dumps: it is much address space, of which each process that maps it
  /// would write everything.
  void keep_from_dumps() const noexcept;
  /// On a page boundary.
  [[nodiscard]] std::span<std::byte> bytes() const noexcept { return bytes_; }

 private:
  SharedMemory(std::span<std::byte> bytes, const Address& address)
      : bytes_(bytes), address_(address) {}
  static std::optional<SharedMemory> map(int descriptor, std::size_t bytes, Access access) noexcept;

  std::span<std::byte> bytes_;
  Address address_;
};

}  // namespace smp::base
