// base/files.cpp: POSIX calls with errors that name the path.
#include "base/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/check.h"

namespace smp::base {
namespace {

[[noreturn]] void fail(const char* what, const std::string& path, int error) {
  throw ResourceError(concat("cannot ", what, " ", path, ": ", std::strerror(error)));
}

// An open file that closes itself.
class Descriptor {
 public:
  Descriptor(const std::string& path, int flags) : value_(::open(path.c_str(), flags)) {}
  ~Descriptor() {
    if (value_ >= 0) ::close(value_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return value_; }
  bool ok() const { return value_ >= 0; }

 private:
  int value_;
};

// 0, or the errno of the first write that failed.
int write_all(int descriptor, std::string_view text) noexcept {
  while (!text.empty()) {
    const ssize_t written = ::write(descriptor, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno;
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  return 0;
}

}  // namespace

std::string read_file(const std::string& path, std::size_t most_bytes) {
  const Descriptor file(path, O_RDONLY | O_CLOEXEC);
  SMP_REQUIRE(file.ok(), "cannot read ", path, ": ", std::strerror(errno));
  std::string content;
  char buffer[1 << 16];
  while (true) {
    const ssize_t count = ::read(file.get(), buffer, sizeof buffer);
    if (count < 0 && errno == EINTR) continue;
    SMP_REQUIRE(count >= 0, "cannot read ", path, ": ", std::strerror(errno));
    if (count == 0) return content;
    content.append(buffer, static_cast<std::size_t>(count));
    SMP_REQUIRE(content.size() <= most_bytes, "cannot read ", path, ": it has more than ",
                most_bytes, " bytes; is it another file?");
  }
}

void remove_file(const std::string& path) noexcept { ::unlink(path.c_str()); }

bool file_exists(const std::string& path) { return ::access(path.c_str(), F_OK) == 0; }

void create_directories(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) fail("create folder", path, error.value());
}

bool create_new_directory(const std::string& path) {
  if (::mkdir(path.c_str(), 0755) == 0) return true;
  if (errno != EEXIST) fail("create folder", path, errno);
  return false;
}

namespace {

void write_device(const std::string& path, std::string_view content) {
  const Descriptor device(path, O_WRONLY | O_NOCTTY | O_CLOEXEC);
  if (!device.ok()) fail("write", path, errno);
  if (const int error = write_all(device.get(), content)) fail("write", path, error);
}

}  // namespace

void write_file(const std::string& path, std::string_view content, Durability durability) {
  if (is_device(path)) return write_device(path, content);
  ReplacementFile file(path);
  file.write_at(0, content);
  file.commit(durability);
}

AppendFile::AppendFile(std::string path)
    : path_(std::move(path)),
      descriptor_(::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644)) {
  if (descriptor_ < 0) fail("open", path_, errno);
}

AppendFile::~AppendFile() { ::close(descriptor_); }

void AppendFile::append(std::string_view bytes) {
  if (const int error = write_all(descriptor_, bytes)) fail("append to", path_, error);
}

void AppendFile::append_line(std::string_view line) { append(concat(line, "\n")); }

}  // namespace smp::base
