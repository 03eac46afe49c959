// What the parts of the played libnrt share: the state of this process, and the machine that all
// processes are on.
#pragma once

#include <pthread.h>
#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <vector>

#include "d2d/wires/neuron/played/played_nrt.h"

#define PLAYED_API extern "C" __attribute__((visibility("default")))

namespace smp::played {

struct Storage {
  std::vector<std::byte> bytes;
  void* attached = nullptr;  // the address by which a network knows it
  bool all_memory = false;   // of the host, from address 0 on
};

}  // namespace smp::played

/// A tensor of the library. Slices share storage.
struct nrt_tensor {
  std::shared_ptr<smp::played::Storage> storage;
  std::size_t offset = 0, size = 0;
  int vnc = 0;
  int pending = 0;  // requests that are not done
};

namespace smp::played {

constexpr int kSuccess = 0, kFailure = 1, kInvalid = 2, kInvalidHandle = 3, kResource = 4,
              kTimeout = 5, kQueueFull = 7, kUninitialized = 13, kClosed = 14;
constexpr int kMostCores = 16;

/// What processes of a machine share.
struct Machine {
  /// Bytes from a core to another: a length of 8 bytes before each message.
  struct Stream {
    static constexpr std::size_t kBytes = 64 << 10;
    pid_t sender = 0, receiver = 0;  // that connected and accepted
    std::uint64_t written = 0, read = 0;
    std::array<std::byte, kBytes> ring;
  };
  struct Core {
    pid_t owner = 0;
    std::int64_t free_at = 0;  // once its owner is gone
  };

  using Streams = std::array<std::array<Stream, kMostCores>, kMostCores>;  // [from][to]

  pthread_mutex_t mutex;
  std::array<Core, kMostCores> cores;
  std::array<int, kMostCores> core_of_device;  // of collectives, by global number; from 1 on
  Streams streams, gathers;                    // of send and receive; of collectives
};

/// Locks the machine, also after a process died that had.
class MachineLock {
 public:
  explicit MachineLock(Machine& machine);
  ~MachineLock();
  MachineLock(const MachineLock&) = delete;
  MachineLock& operator=(const MachineLock&) = delete;

 private:
  Machine& machine_;
};

struct Prepared;  // a collective
struct Tracker;

/// An asynchronous copy between a tensor and host memory, or to another tensor, or a collective.
struct Copy {
  std::uint64_t sequence = 0;
  nrt_tensor* tensor = nullptr;
  std::byte* host = nullptr;
  std::size_t offset = 0, size = 0;
  bool to_host = false;
  int looks = 0;  // until it is done
  int* result = nullptr;
  Tracker* tracker = nullptr;
  nrt_tensor* to = nullptr;
  std::size_t to_offset = 0;
  Prepared* collective = nullptr;
};
struct Queue {
  std::deque<Copy> copies;
  std::uint64_t last = 0, done = 0;
};

enum class Life { kBefore, kRunning, kClosed };

struct Communicator;

struct Process {
  Knobs knobs;
  Counters counters;
  Life life = Life::kBefore;
  bool terminal = false;  // status 101 was given
  pid_t pid = 0;
  std::vector<int> cores;           // absolute, by relative number
  std::map<int, std::size_t> used;  // bytes of a core's memory
  std::set<nrt_tensor*> tensors;
  std::map<std::uint64_t, Queue> queues;  // by the identity of the queue
  std::map<int, std::vector<std::unique_ptr<Communicator>>> communicators;  // of cores that began
  std::set<int> refused;  // cores whose last close failed
  struct Device {
    std::uint32_t number = 0, all = 0;
  };
  std::map<int, Device> devices;  // of collectives, by relative core
  std::map<Prepared*, std::shared_ptr<Prepared>> prepared;
  std::mt19937_64 random{1};
  std::recursive_mutex mutex;
  Machine* machine = nullptr;

  Process();
  ~Process();
};

Process& process();
/// Ends the process: nobody documents what the real library does.
[[noreturn]] void die(const char* what);
/// Whether a call may go on; else `status` is what it returns.
bool may_call(int& status);
/// Whether a process is gone, waited for or not.
bool is_gone(pid_t pid);
Machine& machine();
std::int64_t now_ns();
int random_looks();
nrt_tensor& checked(nrt_tensor* tensor, std::size_t offset, std::size_t size);
std::byte* bytes_of(nrt_tensor& tensor, std::size_t offset);
void copy_in(Machine::Stream& stream, const std::byte* from, std::size_t size);
void copy_out(Machine::Stream& stream, std::byte* to, std::size_t size);
int put(const Copy& wanted, int vnc, std::uint64_t unit, int queue, std::uint64_t* sequence);
/// Moves a collective on. @param status  how it ended. @return whether it has
bool gather(Prepared& collective, int& status);

}  // namespace smp::played

/// Begins a call that may fail.
#define PLAYED_CALL()                           \
  auto& own = smp::played::process();           \
  const std::lock_guard played_lock(own.mutex); \
  if (int status = 0; !smp::played::may_call(status)) return status
