// alive/spoken_mark.cpp: a file whose lock is the turn to speak, and which holds the process that
// has spoken. The kernel gives the lock back when its holder ends, however that ends.
#include "alive/spoken_mark.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <initializer_list>
#include <thread>

#include "base/check.h"

namespace smp::base {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;

constexpr auto kForASpeaker = seconds(5);
constexpr auto kForRankZero = seconds(1);
constexpr auto kBetweenLooks = milliseconds(5);

/// Returns the first of these variables of the environment that there is, as a number; else -1.
int number_of(std::initializer_list<const char*> names) {
  for (const char* const name : names) {
    if (const char* const text = std::getenv(name)) return std::atoi(text);
  }
  return -1;
}

std::string text_of(const char* variable) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? "" : text;
}

/// What the launcher has told this process about the job; -1: nothing.
struct Launch {
  int rank = number_of({"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"});
  int ranks = number_of({"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS"});
  int ranks_here = number_of({"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"});
  std::string folder = text_of("PMIX_SERVER_TMPDIR");

  bool is_alone() const { return rank < 0 || ranks == 1; }
  /// Rank 0 speaks for other machines, and where nobody can see who has spoken.
  bool yields_to_rank_zero() const { return rank > 0 && (folder.empty() || ranks != ranks_here); }
};

}  // namespace

SpokenMark::SpokenMark(const std::string& text) {
  const Launch launch;
  if (launch.is_alone()) return;
  if (!launch.folder.empty()) {
    path_ = concat(launch.folder, "/smp-said-", text_of("PMIX_NAMESPACE"), '-',
                   std::hash<std::string>()(text));
  }
  const auto start = steady_clock::now();
  while (launch.yields_to_rank_zero() && steady_clock::now() < start + kForRankZero) {
    if (take_turn() && set_) return;
    give_turn();
    std::this_thread::sleep_for(kBetweenLooks);
  }
  while (!path_.empty() && !take_turn() && steady_clock::now() < start + kForASpeaker) {
    std::this_thread::sleep_for(kBetweenLooks);
  }
}

SpokenMark::~SpokenMark() { give_turn(); }

/// Returns true if this process has the turn now, and knows whether another one has spoken. Where
/// no file can be made everybody has it.
bool SpokenMark::take_turn() noexcept {
  if (path_.empty()) return false;
  if (file_ < 0) file_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (file_ < 0) return true;
  if (::flock(file_, LOCK_EX | LOCK_NB) != 0) return false;
  pid_t speaker = 0;
  set_ = ::pread(file_, &speaker, sizeof speaker, 0) == sizeof speaker && speaker != ::getpid();
  return true;
}

void SpokenMark::give_turn() noexcept {
  if (file_ >= 0) ::close(file_);
  file_ = -1;
}

void SpokenMark::set() noexcept {
  if (file_ < 0) return;
  const pid_t own = ::getpid();
  if (::pwrite(file_, &own, sizeof own, 0) < 0) return;  // others say it as well
}

}  // namespace smp::base
