// d2d/wires/shm/shm_ring.cpp: headers, wrapping, and who may write where.
#include "d2d/wires/shm/shm_ring.h"

#include <algorithm>
#include <atomic>
#include <cstddef>

#include "base/check.h"

namespace smp::d2d {
namespace {

/// The header in the place of the next record when that is at the beginning of the memory.
constexpr std::uint32_t kSkip = 0xffff'ffff;

std::atomic_ref<std::uint64_t> word(std::byte* place) noexcept {
  return std::atomic_ref<std::uint64_t>(*reinterpret_cast<std::uint64_t*>(place));
}

constexpr std::uint64_t header_of(std::uint32_t kind, std::uint32_t size) noexcept {
  return std::uint64_t{kind} << 32 | size;
}

constexpr std::uint64_t lines_for(std::uint64_t payload) noexcept {
  return (ShmRing::kHeader + payload + ShmRing::kLine - 1) / ShmRing::kLine;
}

}  // namespace

// The first line holds how many lines the reader has given back; the records follow.

ShmRingWriter::ShmRingWriter(std::byte* memory, std::size_t lines) noexcept
    : memory_(memory), lines_(lines), dirty_(lines, 0) {}

std::byte* ShmRingWriter::line(std::uint64_t number) const noexcept {
  return memory_ + (1 + number % lines_) * ShmRing::kLine;
}

bool ShmRingWriter::has_room(std::uint64_t end) noexcept {
  if (end - read_ <= lines_) return true;
  read_ = word(memory_).load(std::memory_order_acquire);
  return end - read_ <= lines_;
}

/// True if the next record may begin the memory anew. A reader who keeps up then finds records in
/// the same few lines again and again, which stay in both cores' caches; he must have read all of
/// them. Asking costs a cache line, so it is done every few lines.
bool ShmRingWriter::may_restart() noexcept {
  constexpr std::uint64_t kFewLines = 128;
  if (record_ / kFewLines == written_ / kFewLines) return false;
  read_ = word(memory_).load(std::memory_order_acquire);
  return read_ == written_;
}

std::byte* ShmRingWriter::begin(std::size_t size) noexcept {
  const auto needed = lines_for(size);
  const auto left = lines_ - written_ % lines_;  // before the end of the memory
  const bool fits = needed <= left;
  const bool restarts = fits && left < lines_ && left + needed <= lines_ && may_restart();
  record_ = fits && !restarts ? written_ : written_ + left;
  if (!has_room(record_ + needed)) return nullptr;
  if (record_ != written_) {
    word(line(written_)).store(header_of(kSkip, 0), std::memory_order_release);
    written_ = record_;
  }
  payload_ = static_cast<std::uint32_t>(size);
  std::fill_n(dirty_.begin() + static_cast<std::ptrdiff_t>(record_ % lines_) + 1, needed - 1, 1);
  return line(record_) + ShmRing::kHeader;
}

void ShmRingWriter::commit(std::uint32_t kind) noexcept {
  written_ = record_ + lines_for(payload_);
  clean(written_);
  word(line(record_)).store(header_of(kind, payload_), std::memory_order_release);
}

/// Zeroes a line that may have held payload. A line that is not free is not dirty: there begins the
/// oldest record that is not read. Nor is the first line of the memory ever, where the writer goes
/// on after a skip.
void ShmRingWriter::clean(std::uint64_t number) noexcept {
  char& dirty = dirty_[number % lines_];
  if (dirty == 0) return;
  dirty = 0;
  word(line(number)).store(0, std::memory_order_relaxed);
}

ShmRingReader::ShmRingReader(std::byte* memory, std::size_t lines) noexcept
    : memory_(memory), lines_(lines) {}

std::byte* ShmRingReader::line(std::uint64_t number) const noexcept {
  return memory_ + (1 + number % lines_) * ShmRing::kLine;
}

/// Goes on at the beginning of the memory. A writer who is there never skips, so a skip of the
/// whole ring is an error.
void ShmRingReader::skip() {
  const auto left = lines_ - read_ % lines_;
  SMP_ASSERT(left < lines_, "a record in shared memory skips a whole ring of ", lines_, " lines");
  word(line(read_)).store(0, std::memory_order_relaxed);
  give_back(read_ + left);
}

std::optional<ShmRing::Record> ShmRingReader::front() {
  auto header = word(line(read_)).load(std::memory_order_acquire);
  if (header == header_of(kSkip, 0)) {
    skip();
    header = word(line(read_)).load(std::memory_order_acquire);
  }
  if (header == 0) return std::nullopt;
  const auto size = static_cast<std::uint32_t>(header);
  const auto next = read_ + lines_for(size);
  SMP_ASSERT(size <= ShmRing::most_payload(lines_) && read_ % lines_ + (next - read_) <= lines_,
             "a record in shared memory has ", size, " bytes at line ", read_ % lines_, " of ",
             lines_);
  next_ = next;
  return ShmRing::Record{static_cast<std::uint32_t>(header >> 32),
                         {line(read_) + ShmRing::kHeader, size}};
}

void ShmRingReader::pop() noexcept {
  word(line(read_)).store(0, std::memory_order_relaxed);
  give_back(next_);
}

void ShmRingReader::give_back(std::uint64_t end) noexcept {
  read_ = end;
  word(memory_).store(end, std::memory_order_release);
}

}  // namespace smp::d2d
