// base/memory/file_copy.cpp: see the header.
#include "base/memory/file_copy.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

#include "base/memory/cut_pages.h"

namespace smp::base {
namespace {

/// As much as is mapped at a time: what is mapped counts as memory of the process.
constexpr std::uint64_t kWindow = 4 << 20;
/// Less is read sooner than mapped.
constexpr std::uint64_t kLeastMapped = 256 << 10;

/// A part of a file in memory, read only.
class Window {
 public:
  Window(int file, std::uint64_t offset, std::size_t size)
      : before_(static_cast<std::size_t>(offset % page_bytes())),
        size_(before_ + size),
        memory_(::mmap(nullptr, size_, PROT_READ, MAP_SHARED, file,
                       static_cast<off_t>(offset - before_))) {}
  ~Window() {
    if (is_mapped()) ::munmap(memory_, size_);
  }
  Window(const Window&) = delete;
  Window& operator=(const Window&) = delete;

  bool is_mapped() const { return memory_ != MAP_FAILED; }
  const char* bytes() const { return static_cast<const char*>(memory_) + before_; }

 private:
  static std::uint64_t page_bytes() {
    static const auto bytes = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
    return bytes;
  }

  std::size_t before_, size_;
  void* memory_;
};

/// Returns false if it did not come to its end.
bool copy_window(const InputFile& file, std::uint64_t offset, char* to, std::size_t size) {
  const Window window(file.descriptor(), offset, size);
  if (!window.is_mapped() || !copy_mapped(to, window.bytes(), size)) return false;
  return !file.has_changed();  // the page in which a file now ends goes on with zeros
}

}  // namespace

bool detail::read_where_it_is(const InputFile& file, std::uint64_t offset, std::size_t size,
                              void (*read)(void*, const char*, std::size_t) noexcept, void* state) {
  if (size < kLeastMapped) return false;
  const Window window(file.descriptor(), offset, size);
  if (!window.is_mapped() || !read_mapped(read, state, window.bytes(), size)) return false;
  return !file.has_changed();
}

/// To places in the file where the system's larger pages end, too.
std::size_t detail::bytes_at_once(std::uint64_t offset, std::uint64_t size) {
  return static_cast<std::size_t>(std::min<std::uint64_t>(size, kWindow - offset % kWindow));
}

void copy_from(const InputFile& file, std::uint64_t offset, void* to, std::size_t size) {
  auto* at = static_cast<char*>(to);
  while (size > 0) {
    const auto count = detail::bytes_at_once(offset, size);
    // Reading says why, or can what mapping cannot.
    if (count < kLeastMapped || !copy_window(file, offset, at, count)) {
      file.read_at(offset, at, count);
    }
    at += count;
    offset += count;
    size -= count;
  }
}

}  // namespace smp::base
