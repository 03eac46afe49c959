// data/files/mapped_input.cpp: mmap; the descriptor is not needed after that.
#include "data/files/mapped_input.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace smp::data {
namespace {

/// Closes a descriptor at the end of a scope.
struct Descriptor {
  int number;
  ~Descriptor() {
    if (number >= 0) ::close(number);
  }
};

}  // namespace

MappedInput::MappedInput(std::string path) : path_(std::move(path)) {
  // Opening a pipe must not wait for who writes it.
  const Descriptor file{::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  SMP_REQUIRE(file.number >= 0, "cannot read ", path_, ": ", std::strerror(errno));
  struct stat status;
  SMP_REQUIRE(::fstat(file.number, &status) == 0, "cannot read ", path_, ": ",
              std::strerror(errno));
  SMP_REQUIRE(S_ISREG(status.st_mode), "cannot read ", path_, ": it is no regular file");
  if (status.st_size == 0) return;
  const auto size = static_cast<std::size_t>(status.st_size);
  void* const memory = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, file.number, 0);
  SMP_REQUIRE_AS(ResourceError, memory != MAP_FAILED, "cannot map ", path_, ": ",
                 std::strerror(errno));
  bytes_ = {static_cast<const char*>(memory), size};
}

MappedInput::~MappedInput() {
  if (!bytes_.empty()) ::munmap(const_cast<char*>(bytes_.data()), bytes_.size());
}

}  // namespace smp::data
