// base/files.h: the only place that writes files. Errors name the path and the system's reason.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "base/replacement_file.h"

namespace smp::base {

/// The most bytes that read_file() takes into memory, unless told otherwise.
inline constexpr std::size_t kMostFileBytes = std::size_t{4} << 30;

/// Returns the whole content of `path`.
/// @throws UsageError  it cannot be read, or has more than `most_bytes`
std::string read_file(const std::string& path, std::size_t most_bytes = kMostFileBytes);

bool file_exists(const std::string& path);

/// Removes the file; does nothing if there is none.
void remove_file(const std::string& path) noexcept;

/// Makes the folder `path` and its parents, as far as they do not exist. @throws ResourceError
void create_directories(const std::string& path);

/// Makes the folder `path` itself; its parents must exist. @return false if it existed
/// @throws ResourceError
bool create_new_directory(const std::string& path);

/// Replaces the content of `path` in one step: a reader sees the old content or the new one. What
/// is no file (/dev/stdout, a pipe) is written to.
/// @throws ResourceError  it cannot be written; the old content is untouched.
void write_file(const std::string& path, std::string_view content,
                Durability durability = Durability::kCached);

/// A file that only grows; what was appended survives the end of the process.
class AppendFile {
 public:
  /// Opens or creates `path`. @throws ResourceError
  explicit AppendFile(std::string path);
  ~AppendFile();
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;

  /// Appends `bytes` in one write. @throws ResourceError
  void append(std::string_view bytes);
  /// Appends `line` and a line end in one write. @throws ResourceError
  void append_line(std::string_view line);
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  int descriptor_;
};

}  // namespace smp::base
