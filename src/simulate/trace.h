// simulate/trace.h: what one microbatch makes a model do, as plain data (paper App. C.1). Modules
// are numbers here: what they are is the business of whoever made the trace.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace smp::simulate {

/// The computation of one call by itself between two events: its start, the calls it makes, its
/// end.
struct ComputeInterval {
  double seconds = 0;  ///< of the forward pass
  /// The bytes of tensors that autograd keeps for backward because of it.
  std::int64_t activation_bytes = 0;
  /// The most bytes of gradients at once in its backward, beyond what it let go of by then.
  std::int64_t gradient_bytes = 0;
  /// The seconds of the backward pass; negative: not known, and Trace::backward_ratio gives them.
  double backward_seconds = -1;
  /// The part of these that computes the gradients of weights.
  double weight_seconds = 0;
  /// The products of its forward (module/products.h), which may be kept where the rest is computed
  /// again: the seconds of the forward that they take, the bytes of their results, and of these the
  /// part that is in `activation_bytes` too.
  double product_seconds = 0;
  std::int64_t product_bytes = 0;
  std::int64_t saved_product_bytes = 0;
  bool operator==(const ComputeInterval&) const = default;
};

/// The seconds of a compute interval.
struct IntervalTimes {
  double forward = 0;
  double backward = 0;
  double weights = 0;  ///< the part of `backward` that gives gradients of weights
};

/// One call of a routed module. It computes, calls, computes, calls, computes.
struct TracedCall {
  int module = 0;   ///< index of the called module in its model
  int caller = -1;  ///< index in Trace::calls; -1: the step body
  /// The computation of the caller from its previous call, or its start, to this call.
  ComputeInterval before = {};
  /// The computation of this call after its last own call; all of it if it makes none.
  ComputeInterval after = {};
  std::int64_t input_bytes = 0;   ///< tensors that travel to the module if it lives elsewhere
  std::int64_t output_bytes = 0;  ///< tensors that travel back
  /// The bytes of tensors that are live in the caller while this call runs, though it does not keep
  /// them for backward: inputs, and outputs of earlier calls.
  std::int64_t caller_live_bytes = 0;
  /// The most bytes of gradients at once that are live in the caller while backward of this call
  /// runs: for what the caller computed, and for results of calls that have not had their backward.
  std::int64_t caller_gradient_bytes = 0;
  /// True if the called module is a Sequential: neighbouring calls that it makes share one request
  /// if they run on the same stage.
  bool sequential = false;
  bool operator==(const TracedCall&) const = default;
};

/// Names a compute interval of a trace.
struct IntervalId {
  int call = -1;        ///< index in Trace::calls; -1: the body, after its last call
  bool before = false;  ///< TracedCall::before; else TracedCall::after
  bool operator==(const IntervalId&) const = default;
};

/// A tensor that several compute intervals keep. It counts in the activation_bytes of the first,
/// unless it is of the batch: then the first is the body's start, which has it anyway. On a rank
/// that does not run the first one, it is another tensor, which travelled there.
struct SharedTensor {
  std::int64_t bytes = 0;
  std::vector<IntervalId> keepers;  ///< each once, in the order in which they ran
  bool operator==(const SharedTensor&) const = default;
};

/// The ways in which a call or an operator has a tensor.
enum class TensorUseKind : std::uint8_t {
  kKept,      ///< an operator of the interval keeps it for backward
  kArgument,  ///< the call got it
  kResult,    ///< the call returned it
};

/// A use of one of the tensors that calls got or returned, so that a tensor which is kept in two
/// ways can be told from two tensors.
struct TensorUse {
  int tensor = 0;  ///< number in the trace
  std::int64_t bytes = 0;
  TensorUseKind kind = TensorUseKind::kKept;
  IntervalId at = {};  ///< kArgument and kResult: of the call
  bool operator==(const TensorUse&) const = default;
};

/// A module that reads a weight that another module registered (`embed->weight` in its parent), or
/// that was passed to it: both must be on one stage.
struct WeightUse {
  int module = 0;     ///< that reads it; 0, the model itself, stands for the step body too
  int parameter = 0;  ///< index among the parameters of the model
};

/// The kinds of state that a module keeps from one call to the next; later ones demand more.
enum class StateKind : std::uint8_t {
  kCache,    ///< its first call leaves members that only its own calls read
  kOrdered,  ///< every call changes buffers that only its own calls read
  kShared,   ///< others may read it: members, and what another module reads or writes
};

/// A module whose members, buffers or weights change in forward.
struct StateChange {
  int module = 0;  ///< 0, the model itself, stands for the step body too
  StateKind kind = StateKind::kShared;
  std::string what;  ///< "writes its members, from byte 24 of 40", "writes 'ema'"
};

/// A module that reads a buffer which another module holds, and which cannot be held by all ranks
/// because it is written or large: both must be on one stage.
struct BufferUse {
  int module = 0;    ///< that reads or also holds it; 0 stands for the step body too
  int holder = 0;    ///< that registered it first
  std::string name;  ///< dotted: "embed.table"
};

/// A module whose calls keep their inputs only, and are computed again when the backward comes
/// there (docs/memory.md).
struct RecomputedModule {
  int module = 0;
  bool keeps_products = false;  ///< its calls keep the results of products as well
  bool operator==(const RecomputedModule&) const = default;
  bool operator<(const RecomputedModule& other) const { return module < other.module; }
};
/// Ascending, each module once, with those below a module that is meant as a whole.
using RecomputedModules = std::vector<RecomputedModule>;

/// A module that asked for the value of a tensor (`.item()`) where only shapes were known.
struct AssumedValue {
  int module = 0;    ///< 0, the model itself, stands for the step body too
  double value = 0;  ///< that it was given
};

/// The origin of the numbers in a trace.
enum class CostSource : std::uint8_t {
  kCounts,     ///< nothing was run: every module counts its descendants (skip_tracing)
  kEstimated,  ///< operators and their sizes, priced by a roofline: the same on every machine
  kMeasured,   ///< a clock: the median of several runs
};

/// The distribution of the times of a microbatch on another device, scaled as if that were as fast
/// as the traced one: forward and backward of the whole microbatch take as long.
struct DeviceProfile {
  std::string device;                ///< base/machine/device.h
  double speed = 1;                  ///< over the traced device, for the microbatch as a whole
  std::vector<IntervalTimes> times;  ///< by Trace::index_of()
};

/// One microbatch through the step body, and perhaps others that went another way.
struct Trace {
  std::vector<TracedCall> calls;    ///< in the order in which they began; a caller comes first
  ComputeInterval body_after = {};  ///< what the body itself computed after its last call
  /// The innermost call whose result, unchanged, the body calls backward on; -1: there is none.
  int loss_call = -1;
  std::vector<WeightUse> foreign_uses;
  std::vector<BufferUse> buffer_uses;
  std::vector<SharedTensor> shared;
  /// Of tensors with several, those of one tensor beside each other, what keeps it first: an input
  /// of two calls that are computed again is one tensor. Empty, if not known.
  std::vector<TensorUse> uses = {};
  std::vector<StateChange> state;          ///< by module, each once
  std::vector<AssumedValue> assumed = {};  ///< by module, each once
  bool used = false;  ///< the body called a module of the model, or read a tensor of it
  /// The types of autograd nodes that do not tell what they keep, so activations lack it. Each
  /// once, with the first model of a run.
  std::vector<std::string> silent_nodes = {};
  CostSource source = CostSource::kEstimated;
  /// The ratio of backward to forward time where the backward time of an interval is not known.
  double backward_ratio = 2.0;
  /// The share of that backward time which computes the gradients of weights. Half is that of a
  /// linear layer.
  double weight_share = 0.5;
  /// The share of the measured time that was spent on a core. Less than 1 if modules sleep, read
  /// files or wait for a device.
  double processor_share = 1;
  /// The device on which the calls take the seconds that they say (base/machine/device.h); empty:
  /// any.
  std::string device = {};
  std::vector<DeviceProfile> profiles = {};  ///< of other devices, each once
  RecomputedModules recomputed = {};
  /// The traces of further microbatches, without what holds of the model (uses of weights and
  /// buffers, state, recomputed modules) and without others of their own.
  std::vector<Trace> others = {};

  std::size_t num_traced() const { return 1 + others.size(); }
  /// Returns the trace of microbatch `number` of a step, counted from 0: the traced ones are
  /// repeated.
  const Trace& of_microbatch(std::size_t number) const {
    const std::size_t traced = number % num_traced();
    return traced == 0 ? *this : others[traced - 1];
  }
  /// True if two microbatches did the same.
  bool goes_as(const Trace& other) const {
    return calls == other.calls && body_after == other.body_after && loss_call == other.loss_call &&
           shared == other.shared;
  }
  bool calls_nothing() const { return mean_calls() == 0; }
  /// Returns the calls of a microbatch, on average, rounded up.
  std::size_t mean_calls() const {
    std::size_t all = calls.size();
    for (const Trace& other : others) all += other.calls.size();
    return (all + num_traced() - 1) / num_traced();
  }

  /// Returns the index of an interval among all of the trace: those before a call and after it, for
  /// the body and for each call.
  static std::size_t index_of(const IntervalId& id) {
    return 2 * static_cast<std::size_t>(id.call + 1) + (id.before ? 1 : 0);
  }
  std::size_t num_intervals() const { return 2 * (calls.size() + 1); }
  const ComputeInterval& interval(const IntervalId& id) const {
    if (id.call < 0) return body_after;
    const TracedCall& call = calls[static_cast<std::size_t>(id.call)];
    return id.before ? call.before : call.after;
  }
  double backward_of(const ComputeInterval& own) const {
    return own.backward_seconds < 0 ? own.seconds * backward_ratio : own.backward_seconds;
  }
  IntervalTimes times_of(const ComputeInterval& own) const {
    const double backward = backward_of(own);
    const bool known = own.backward_seconds >= 0;
    return {own.seconds, backward, known ? own.weight_seconds : backward * weight_share};
  }
  /// Returns the profile of a device; nullptr: the trace's own times hold there.
  const DeviceProfile* find_profile(const std::string& name) const {
    for (const DeviceProfile& profile : profiles) {
      if (profile.device == name) return &profile;
    }
    return nullptr;
  }
};

/// Returns what is said of `module`; nullptr: its calls are not computed again.
inline const RecomputedModule* find_module(const RecomputedModules& modules, int module) {
  const auto found = std::lower_bound(
      modules.begin(), modules.end(), module,
      [](const RecomputedModule& each, int number) { return each.module < number; });
  return found == modules.end() || found->module != module ? nullptr : &*found;
}

}  // namespace smp::simulate
