// base/memory/shared_memory_refusal.cpp: see the header.
#include "base/memory/shared_memory_refusal.h"

#include <sys/resource.h>

#include <cerrno>
#include <system_error>

#include "base/check.h"
#include "base/text/byte_text.h"

namespace smp::base {
namespace {

std::string text_of(int error) { return std::generic_category().message(error); }

}  // namespace

MemoryRefusal refusal_to_make(int error, std::size_t bytes, std::int64_t longest_file) {
  const auto needed = byte_text(static_cast<std::int64_t>(bytes)) + " are needed";
  switch (error) {
    case EFBIG:
      return {concat(text_of(error), " (", needed, ", and `ulimit -f` allows ",
                     byte_text(longest_file), ")"),
              "`ulimit -f unlimited` in the shell that starts the ranks"};
    case ENOMEM:
      return {concat(text_of(error), " (", needed, " of addresses)"),
              "`ulimit -v unlimited` in the shell that starts the ranks, or more memory for the "
              "container"};
    case EMFILE:
    case ENFILE:
      return {text_of(error), "`ulimit -n 4096` in the shell that starts the ranks"};
    case EPERM:
    case EACCES:
    case ENOSYS:
      return {concat(text_of(error), " (memfd_create)"),
              "a container whose seccomp profile allows memfd_create"};
    default:
      return {concat(text_of(error), " (", needed, ")"), {}};
  }
}

MemoryRefusal refusal_to_open(int error) {
  switch (error) {
    case EMFILE:
    case ENFILE:
    case ENOMEM:
      return refusal_to_make(error, 0, -1);
    default:  // another user's process, or one whose number means something else here
      return {concat("the memory of another rank cannot be opened through /proc: ", text_of(error)),
              "all ranks of a machine as one user and in one container (or docker run --pid=host)"};
  }
}

std::int64_t longest_file() noexcept {
  rlimit files{};
  if (::getrlimit(RLIMIT_FSIZE, &files) != 0 || files.rlim_cur == RLIM_INFINITY) return -1;
  return static_cast<std::int64_t>(files.rlim_cur);
}

}  // namespace smp::base
