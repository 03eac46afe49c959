// base/replacement_file.h: a file's new content, which takes the place of the old one at once.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace smp::base {

enum class Durability {
  kCached,  ///< survives the end of the process
  kSynced,  ///< survives a loss of power
};

/// True if `path` is there and stands for more than bytes of a file: a device, a pipe, a socket, or
/// an entry of /dev or /proc such as /dev/stdout. Whoever is root could replace these, too.
bool is_device(const std::string& path);

/// A file that takes the place of `path` once it is complete: a reader sees the old content or the
/// new one. Until then it has no name where the file system can do that, so that nothing is left of
/// it if the process is killed; elsewhere (NFS) it is called `path`.new.PID.RANDOM.
class ReplacementFile {
 public:
  /// Opens a file in the folder of `path`. @throws ResourceError  also if `path` is_device()
  explicit ReplacementFile(std::string path);
  /// Removes the new file, unless commit() put it in its place.
  ~ReplacementFile();
  ReplacementFile(const ReplacementFile&) = delete;
  ReplacementFile& operator=(const ReplacementFile&) = delete;

  /// @throws ResourceError  naming the system's reason, such as a full disk
  void write_at(std::uint64_t offset, std::string_view content);
  /// @throws ResourceError  `path` keeps its old content
  void commit(Durability durability = Durability::kSynced);

 private:
  void give_name(Durability durability);
  void sync() const;

  std::string path_;
  std::string temporary_;  // its name; empty: it has none
  int descriptor_;
};

}  // namespace smp::base
