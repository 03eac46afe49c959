// d2d/wires/neuron/neuron_runtime.h: the life of AWS Neuron's runtime in this process: which cores
// it has claimed, and whether calls may be made. Threads: the rank's thread only.
#pragma once

#include <memory>
#include <string>
#include <type_traits>

#include "base/clock.h"
#include "base/forked_child.h"
#include "d2d/wires/neuron/neuron_core.h"
#include "d2d/wires/neuron/neuron_library.h"
#include "d2d/wires/neuron/neuron_status.h"
#include "smp/rank.h"

namespace smp::d2d {

/// How long a claim is tried again: a core may be released some time after its process has ended.
inline constexpr base::Nanoseconds kClaimPatience = 30 * base::kSecond;

/// The runtime between nrt_init and nrt_close. One lives at a time in a process. Cores are this
/// process's alone until it ends; all memory of the runtime ends with it. What still lives when the
/// process exits is closed then.
class NeuronRuntime {
 public:
  /// Claims cores. Before libfabric is first asked for anything: it looks only once whether there
  /// is Neuron memory.
  /// @param library   outlives this
  /// @param patience  for cores that others have
  /// @throws PeerLostError  others keep a core, or the runtime does not start.
  /// @throws UsageError     this process has closed the runtime before, and it is older than 2.34.
  NeuronRuntime(NeuronLibrary& library, GlobalRank rank, const CoreClaim& claim,
                base::Nanoseconds patience = kClaimPatience);
  struct OfFramework {};
  /// Takes part in a runtime that a framework of this process has started, and will end.
  /// @param claim  that has the framework's cores at the places of their relative numbers
  NeuronRuntime(NeuronLibrary& library, GlobalRank rank, const CoreClaim& claim, OfFramework);
  ~NeuronRuntime();
  NeuronRuntime(const NeuronRuntime&) = delete;
  NeuronRuntime& operator=(const NeuronRuntime&) = delete;

  /// Releases the cores, unless they are a framework's. Later calls are refused. Does nothing the
  /// second time, or in a child that was forked.
  void close() noexcept;
  /// True if no call may be made any more: after close(), and in a child that was forked.
  bool is_closed() const noexcept { return closed_ || !made_.is_here(); }

  const NeuronLibrary& library() const noexcept { return library_; }
  GlobalRank rank() const noexcept { return rank_; }
  const CoreClaim& claim() const noexcept { return claim_; }

  /// To be called before each call that uses the runtime.
  /// @throws UsageError     this is a child that was forked since.
  /// @throws PeerLostError  the runtime is closed, or a core has failed for good.
  void require_usable(const char* call) const;
  /// Throws if `status` is not success; see throw_neuron_error().
  /// @param doing  as in "sending 300 bytes to rank 2", or what returns that
  template <class Doing>
  void require(int status, const Doing& doing, const char* call, RelativeCore core) {
    if (status == neuron_status::kSuccess) return;
    if constexpr (std::is_invocable_v<Doing>) {
      fail(status, doing(), call, core);
    } else {
      fail(status, doing, call, core);
    }
  }
  [[noreturn]] void fail(int status, const std::string& doing, const char* call, RelativeCore core);

 private:
  void check_claim() const;
  void init(base::Nanoseconds patience);
  void note_living();

  NeuronLibrary& library_;
  GlobalRank rank_;
  CoreClaim claim_;
  base::MadeHere made_;
  bool is_framework_s_ = false;
  bool closed_ = true;
  std::string lost_;  // why no call is made any more
};

}  // namespace smp::d2d
