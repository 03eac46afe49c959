// base/input_file.h: a file that is read in parts. Errors name the path and the system's reason.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace smp::base {

/// An open file. Threads: any.
class InputFile {
 public:
  /// What tells this very file from others, wherever a file system is mounted: its number there,
  /// its size, and when it was changed last, in nanoseconds.
  using Identity = std::array<std::uint64_t, 3>;

  /// @throws UsageError  the file cannot be opened
  explicit InputFile(std::string path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  [[nodiscard]] std::uint64_t size() const { return identity_[1]; }
  const std::string& path() const { return path_; }
  /// As it was when the file was opened.
  const Identity& identity() const { return identity_; }

  /// Fills `to` from the byte `offset`. @throws UsageError  the file is too short, or unreadable
  void read_at(std::uint64_t offset, void* to, std::size_t size) const;
  /// Gives `take` the `size` bytes from `offset` on, a part at a time. @throws as read_at()
  void read_parts(std::uint64_t offset, std::uint64_t size,
                  const std::function<void(std::string_view)>& take) const;
  /// Throws what read_at() would. The system reads the bytes, unless it has them; where it can, it
  /// copies them nowhere.
  void require_readable(std::uint64_t offset, std::uint64_t size) const;
  /// True if the open file is no longer as it was when it was opened: its time of change or size.
  [[nodiscard]] bool has_changed() const;
  /// For calls of the system; it stays open as long as this object lives.
  [[nodiscard]] int descriptor() const { return descriptor_; }

 private:
  std::string path_;
  int descriptor_;
  Identity identity_{};
};

}  // namespace smp::base
