// d2d/wires/neuron/neuron_requests.h: how asynchronous requests of a core end, in the way of the
// release. Threads: the rank's thread only; nothing here blocks.
#pragma once

#include "base/clock.h"
#include "d2d/wires/neuron/neuron_runtime.h"

namespace smp::d2d {

/// A request that was put on a queue. It stays where it is until it is done: the runtime writes its
/// result there.
struct NeuronRequest {
  static constexpr int kNoResult = -1;

  NeuronLibrary::Sequence sequence = 0;
  int result = kNoResult;
  base::Nanoseconds started = 0;
};

/// Looks after the requests of one core. That a call succeeds means that its request is on a queue;
/// how it went is written later, and until then memory of both sides and the request stay.
class NeuronRequests {
 public:
  /// How long a copy may take, and how long destructors wait for what is under way.
  static constexpr base::Nanoseconds kLongestCopy = 30 * base::kSecond;
  static constexpr base::Nanoseconds kEndPatience = 5 * base::kSecond;

  /// @param runtime  outlives this
  NeuronRequests(NeuronRuntime& runtime, RelativeCore core);
  ~NeuronRequests();
  NeuronRequests(const NeuronRequests&) = delete;
  NeuronRequests& operator=(const NeuronRequests&) = delete;

  NeuronRuntime& runtime() const noexcept { return runtime_; }
  const NeuronLibrary& library() const noexcept { return runtime_.library(); }
  RelativeCore core() const noexcept { return core_; }
  base::Nanoseconds now() const noexcept { return clock_.now(); }
  /// Returns what calls of NeuronInterface::kErrorTracker are given.
  void* tracker() const noexcept { return tracker_; }
  /// To be called when requests may be under way that nobody waits for any more.
  void keep_tracker() noexcept { tracker_ = nullptr; }

  bool is_done(const NeuronRequest& request) const;
  /// Returns the status of a request that is done.
  int result_of(const NeuronRequest& request) const;

 private:
  NeuronRuntime& runtime_;
  RelativeCore core_;
  base::SteadyClock clock_;
  void* tracker_ = nullptr;
};

}  // namespace smp::d2d
