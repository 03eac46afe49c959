// base/memory/mapped_file.h: a file as memory, for what must outlive the process that writes it.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace smp::base {

/// A new file of fixed size, mapped to memory. Bytes written there are in the file however the
/// process ends, SIGKILL included; a loss of power may lose them. Writing costs what memory costs.
/// Threads: as memory.
class MappedFile {
 public:
  /// Makes `path`, or replaces it, full of zeros.
  /// @param size  bytes, at least 1; they are taken on the disk at once, so that none is missing
  /// later
  /// @throws ResourceError  it cannot be made or mapped, or the disk is full.
  MappedFile(const std::string& path, std::size_t size);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  /// The bytes of the file; they begin on a page boundary.
  [[nodiscard]] std::span<std::byte> bytes() const noexcept { return bytes_; }

 private:
  std::span<std::byte> bytes_;
};

}  // namespace smp::base
