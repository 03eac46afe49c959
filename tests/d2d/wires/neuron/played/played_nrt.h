// A played libnrt: what tests turn in it, and what they may look at. It demands what the published
// headers and documents of AWS Neuron demand, and where they promise nothing it plays the worst.
#pragma once

#include <cstddef>
#include <cstdint>

struct nrt_tensor;

namespace smp::played {

/// What may be turned, of this process.
struct Knobs {
  std::uint64_t seed = 1;                         ///< of all that is late
  int late = 4;                                   ///< looks until something is done, at most
  int queue_depth = 4;                            ///< requests of one queue of an execution unit
  int communicators = 16;                         ///< of send and receive, for each core
  int pending = 2;                                ///< requests of a communicator
  int cores = 8;                                  ///< of the instance, logical
  int first_absolute = 2;                         ///< of the instance, where a container hides some
  std::size_t hbm_bytes = std::size_t{64} << 20;  ///< for each core
  int release_ms = 50;                            ///< until a core of a process that died is free
  bool gives_addresses = false;                   ///< get_va tells one
  int collective_ms = 200;  ///< that a collective waits for its other side; from 2.33 on: for ever
  bool silent_peers = false;    ///< what a lost peer should have done stays pending for ever
  std::int64_t fail_call = -1;  ///< the number of the call that fails, as `calls` counts; -1: none
  std::int64_t fail_result = -1;  ///< of the asynchronous request that ends badly, as `results`
  int fail_status = 1;
};

/// What has happened, in this process.
struct Counters {
  std::int64_t calls = 0;                                ///< of those that may fail
  std::int64_t results = 0;                              ///< of asynchronous requests
  std::int64_t tensors = 0, trackers = 0, requests = 0;  ///< that are there now
  std::int64_t copies = 0;                               ///< that are on queues now
  std::int64_t prepared = 0;                             ///< collectives, so far
  std::int64_t flushes = 0;
  std::int64_t queue_full = 0;
  std::int64_t attached = 0, attachments = 0;  ///< to networks: now, and so far
};

struct Control {
  Knobs* knobs;
  const Counters* counters;
  /// Forgets everything, as a process that starts. Knobs and counters too.
  void (*start_anew)();
  /// A tensor of a core that is all of the host's memory: an offset in it is an address. So tests
  /// of wires may take host memory for the core's.
  nrt_tensor* (*all_host_memory)(int vnc);
  /// What the driver does when libfabric registers memory of a core, and when it ends that. Returns
  /// 0, or why not: EINVAL, it is of no tensor; EPERM, it is attached already.
  int (*attach)(void* address, std::size_t size);
  void (*detach)(void* address);
  /// Where the bytes of a tensor really are.
  std::byte* (*look_into)(nrt_tensor* tensor);
};

}  // namespace smp::played

/// Returns the control of the library that this symbol was found in.
extern "C" const smp::played::Control* played_nrt();
