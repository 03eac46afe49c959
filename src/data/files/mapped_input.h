// data/files/mapped_input.h: a file that is read as memory.
#pragma once

#include <string>
#include <string_view>

namespace smp::data {

/// A regular file, mapped to memory in constant time. It must not be cut short while this lives:
/// the system ends a process that reads behind the end. Threads: any.
class MappedInput {
 public:
  /// @throws UsageError  it cannot be read, or is no regular file
  explicit MappedInput(std::string path);
  ~MappedInput();
  MappedInput(const MappedInput&) = delete;
  MappedInput& operator=(const MappedInput&) = delete;

  /// All of the file; begins on a page boundary.
  std::string_view bytes() const noexcept { return bytes_; }
  const std::string& path() const noexcept { return path_; }

 private:
  std::string path_;
  std::string_view bytes_;
};

}  // namespace smp::data
