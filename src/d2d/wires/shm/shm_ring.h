// d2d/wires/shm/shm_ring.h: records from one process to another through memory that both map.
// Threads: one writer and one reader, each from one thread; nothing here blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace smp::d2d {

/// A ring of cache lines. A record begins on a line with a header of 8 bytes, which is not zero and
/// is written last: so the reader looks at one line to learn that a record came, and a short record
/// is in it. What the reader finds at the next place is zero until a new header is there: he zeroes
/// each header that he has read, and the writer, before he writes one, the place of the next, if
/// that lies where payload was. Nobody else writes to lines of payload, which would have to travel
/// for it.
struct ShmRing {
  static constexpr std::size_t kLine = 64;
  static constexpr std::size_t kHeader = 8;

  /// The bytes of a ring, which begins as zeros on a line boundary.
  static constexpr std::size_t bytes_for(std::size_t lines) noexcept { return (lines + 1) * kLine; }
  /// The most bytes of one record: several always fit.
  static constexpr std::size_t most_payload(std::size_t lines) noexcept {
    return lines / 4 * kLine - kHeader;
  }

  struct Record {
    std::uint32_t kind = 0;
    std::span<const std::byte> payload;
  };
};

/// The end that writes.
class ShmRingWriter {
 public:
  /// @param memory  of ShmRing::bytes_for(`lines`), mapped as long as this lives
  ShmRingWriter(std::byte* memory, std::size_t lines) noexcept;

  std::size_t most_payload() const noexcept { return ShmRing::most_payload(lines_); }
  /// Returns the place of the next record's payload; nullptr: there is no room yet. Followed by
  /// commit(), or not at all.
  /// @param size  at most most_payload()
  [[nodiscard]] std::byte* begin(std::size_t size) noexcept;
  /// Lets the reader have the record. @param kind  above 0
  void commit(std::uint32_t kind) noexcept;

 private:
  std::byte* line(std::uint64_t number) const noexcept;
  bool has_room(std::uint64_t end) noexcept;
  bool may_restart() noexcept;
  void clean(std::uint64_t number) noexcept;

  std::byte* memory_;
  std::uint64_t lines_;
  std::uint64_t written_ = 0;  // lines, since the beginning
  std::uint64_t read_ = 0;     // lines that the reader had given back when asked last
  std::uint64_t record_ = 0;   // where the record begins
  std::uint32_t payload_ = 0;  // of the record, bytes
  std::vector<char> dirty_;    // of each line, whether its first word may be payload
};

/// The end that reads.
class ShmRingReader {
 public:
  ShmRingReader(std::byte* memory, std::size_t lines) noexcept;

  /// Returns the oldest record, valid until pop(); nothing if there is none.
  /// @throws InternalError  the bytes there are no record of a writer's.
  [[nodiscard]] std::optional<ShmRing::Record> front();
  /// Gives the room of front() back.
  void pop() noexcept;

 private:
  std::byte* line(std::uint64_t number) const noexcept;
  void skip();
  void give_back(std::uint64_t end) noexcept;

  std::byte* memory_;
  std::uint64_t lines_;
  std::uint64_t read_ = 0;
  std::uint64_t next_ = 0;  // behind front()
};

}  // namespace smp::d2d
