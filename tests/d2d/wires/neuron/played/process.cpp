// The played libnrt: its life, and which process has which core.
#include "d2d/wires/neuron/played/process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <new>
#include <string>

namespace smp::played {
namespace {

std::unique_ptr<Process>& only() {
  static auto* const one = new std::unique_ptr<Process>(new Process);
  return *one;
}

Machine* new_machine(void* memory) {
  auto* const machine = new (memory) Machine;
  pthread_mutexattr_t attributes;
  pthread_mutexattr_init(&attributes);
  pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
  pthread_mutex_init(&machine->mutex, &attributes);
  pthread_mutexattr_destroy(&attributes);
  return machine;
}

/// The file that PLAYED_NRT_MACHINE names is the machine; without it this process is alone on one.
Machine* open_machine() {
  const char* const name = std::getenv("PLAYED_NRT_MACHINE");
  if (name == nullptr) {
    void* const memory = ::mmap(nullptr, sizeof(Machine), PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) die("no memory for a machine");
    return new_machine(memory);
  }
  const int file = ::open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (file < 0) die("PLAYED_NRT_MACHINE cannot be opened");
  ::flock(file, LOCK_EX);
  struct stat state {};
  ::fstat(file, &state);
  const bool is_new = state.st_size == 0;
  if (is_new && ::ftruncate(file, sizeof(Machine)) != 0) die("no room for a machine");
  void* const memory =
      ::mmap(nullptr, sizeof(Machine), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (memory == MAP_FAILED) die("PLAYED_NRT_MACHINE cannot be mapped");
  auto* const machine = is_new ? new_machine(memory) : static_cast<Machine*>(memory);
  ::flock(file, LOCK_UN);
  ::close(file);
  return machine;
}

/// "3" or "2-5" or "2,3,4", contiguous and increasing; the default is all.
bool wanted_cores(const Knobs& knobs, std::vector<int>& cores) {
  if (const char* const list = std::getenv("NEURON_RT_VISIBLE_CORES")) {
    const char* at = list;
    while (*at != 0) {
      char* end = nullptr;
      const long first = std::strtol(at, &end, 10);
      long last = first;
      if (end == at) return false;
      if (*end == '-') {
        at = end + 1;
        last = std::strtol(at, &end, 10);
        if (end == at) return false;
      }
      for (long core = first; core <= last; ++core) cores.push_back(static_cast<int>(core));
      if (*end != 0 && *end != ',') return false;
      at = *end == ',' ? end + 1 : end;
    }
    for (std::size_t i = 0; i < cores.size(); ++i) {
      const bool follows = i == 0 || cores[i] == cores[i - 1] + 1;
      if (!follows || cores[i] < 0 || cores[i] >= knobs.cores) return false;
    }
    return !cores.empty();
  }
  const char* const number = std::getenv("NEURON_RT_NUM_CORES");
  const int count = number == nullptr ? knobs.cores : std::atoi(number);
  for (int core = 0; core < std::min(count, knobs.cores); ++core) cores.push_back(core);
  return !cores.empty();
}

bool claim(Process& own, const std::vector<int>& cores) {
  auto& shared = machine();
  const MachineLock lock(shared);
  for (const int core : cores) {
    auto& place = shared.cores[static_cast<std::size_t>(core)];
    if (place.owner == 0) continue;
    if (place.owner == own.pid) return false;
    if (!is_gone(place.owner)) return false;
    if (place.free_at == 0) place.free_at = now_ns() + own.knobs.release_ms * 1'000'000LL;
    if (now_ns() < place.free_at) return false;  // released, but late
    place = {};
  }
  for (const int core : cores) shared.cores[static_cast<std::size_t>(core)] = {own.pid, 0};
  return true;
}

void release(Process& own) {
  auto& shared = machine();
  const MachineLock lock(shared);
  for (std::size_t core = 0; core < kMostCores; ++core) {
    if (shared.cores[core].owner == own.pid) shared.cores[core] = {};
    for (auto* const streams : {&shared.streams, &shared.gathers}) {
      for (auto& stream : (*streams)[core]) {
        const bool of_this = stream.sender == own.pid || stream.receiver == own.pid;
        if (of_this) stream.sender = stream.receiver = 0, stream.written = stream.read = 0;
      }
    }
  }
}

void start_anew() {
  auto& own = process();
  if (own.machine != nullptr) {
    if (own.life == Life::kRunning && own.pid == ::getpid()) release(own);
    ::munmap(own.machine, sizeof(Machine));
  }
  only() = std::make_unique<Process>();
}

Knobs* knobs() { return &process().knobs; }

/// The memory of a live tensor that begins there.
Storage* storage_at(const void* address, std::size_t size) {
  for (auto* const tensor : process().tensors) {
    if (bytes_of(*tensor, 0) == address && tensor->size >= size) return tensor->storage.get();
  }
  return nullptr;
}

int attach(void* address, std::size_t size) {
  auto* const storage = storage_at(address, size);
  if (storage == nullptr) return EINVAL;
  if (storage->attached != nullptr) return EPERM;  // one at a time
  storage->attached = address;
  ++process().counters.attached;
  ++process().counters.attachments;
  return 0;
}

void detach(void* address) {
  for (auto* const tensor : process().tensors) {
    if (tensor->storage->attached != address) continue;
    tensor->storage->attached = nullptr;
    --process().counters.attached;
    return;
  }
  die("a registration ends after its memory");
}

}  // namespace

Process& process() { return *only(); }

void die(const char* what) {
  std::fprintf(stderr, "played libnrt: %s\n", what);
  std::abort();
}

std::int64_t now_ns() {
  timespec time{};
  ::clock_gettime(CLOCK_MONOTONIC, &time);
  return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

Machine& machine() {
  if (process().machine == nullptr) process().machine = open_machine();
  return *process().machine;
}

MachineLock::MachineLock(Machine& machine) : machine_(machine) {
  if (pthread_mutex_lock(&machine_.mutex) == EOWNERDEAD) {
    pthread_mutex_consistent(&machine_.mutex);
  }
}
MachineLock::~MachineLock() { pthread_mutex_unlock(&machine_.mutex); }

bool is_gone(pid_t pid) {
  if (::kill(pid, 0) != 0) return true;
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(file, text);
  const auto end = text.rfind(')');
  return end != std::string::npos && end + 2 < text.size() && text[end + 2] == 'Z';
}

bool may_call(int& status) {
  auto& own = process();
  if (own.life != Life::kRunning) {
    status = own.life == Life::kBefore ? kUninitialized : kClosed;
    return false;
  }
  if (own.pid != ::getpid()) return status = kFailure, false;  // a child of fork()
  if (own.terminal) return status = 101, false;
  if (own.counters.calls++ == own.knobs.fail_call) {
    status = own.knobs.fail_status;
    own.terminal = status == 101;
    return false;
  }
  return true;
}

int random_looks() {
  auto& own = process();
  if (own.knobs.late <= 0) return 0;
  return static_cast<int>(own.random() % (static_cast<std::uint64_t>(own.knobs.late) + 1));
}

}  // namespace smp::played

using smp::played::process;

PLAYED_API const smp::played::Control* played_nrt() {
  static smp::played::Control control;
  control = {smp::played::knobs(),
             &process().counters,
             &smp::played::start_anew,
             [](int vnc) {
               auto* const tensor = new nrt_tensor;
               tensor->storage = std::make_shared<smp::played::Storage>();
               tensor->storage->all_memory = true;
               tensor->size = SIZE_MAX;
               tensor->vnc = vnc;
               process().tensors.insert(tensor);
               ++process().counters.tensors;
               return tensor;
             },
             &smp::played::attach,
             &smp::played::detach,
             [](nrt_tensor* tensor) { return smp::played::bytes_of(*tensor, 0); }};
  return &control;
}

namespace smp::played {
struct Version {
  std::uint64_t major, minor, patch, maintenance;
  char detail[128], hash[64];
};
}  // namespace smp::played

PLAYED_API int nrt_get_version(smp::played::Version* version, std::size_t size) {
  if (version == nullptr || size != sizeof(smp::played::Version)) return smp::played::kInvalid;
  *version = {2, PLAYED_MINOR, 50, 0, {}, {}};
  std::snprintf(version->detail, sizeof version->detail, "2.%d.50.0-played", PLAYED_MINOR);
  return smp::played::kSuccess;
}

PLAYED_API int nrt_get_total_vnc_count(std::uint32_t* count) {
  *count = static_cast<std::uint32_t>(process().knobs.cores);
  return smp::played::kSuccess;
}

PLAYED_API int nrt_init(int framework, const char* version, const char* other) {
  using namespace smp::played;
  auto& own = process();
  const std::lock_guard lock(own.mutex);
  if (framework < 1 || framework > 4 || version == nullptr || other == nullptr) return kInvalid;
  if (own.life == Life::kRunning) return kInvalid;
  if (own.life == Life::kClosed && PLAYED_MINOR < 34) return kClosed;  // one life for a process
  if (own.counters.calls++ == own.knobs.fail_call) return own.knobs.fail_status;
  std::vector<int> cores;
  if (!wanted_cores(own.knobs, cores)) return kInvalid;
  own.pid = ::getpid();
  if (!claim(own, cores)) return kFailure;
  own.cores = std::move(cores);
  own.random.seed(own.knobs.seed);
  own.life = Life::kRunning;
  return kSuccess;
}

PLAYED_API void nrt_close() {
  using namespace smp::played;
  auto& own = process();
  const std::lock_guard lock(own.mutex);
  if (own.life != Life::kRunning || own.pid != ::getpid()) return;
  if (!own.communicators.empty()) {
    std::fprintf(stderr, "played libnrt: nrt_close before nrt_async_sendrecv_close\n");
  }
  release(own);
  own.life = Life::kClosed;
}
