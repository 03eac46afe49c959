// smp/call.h: what happens when a routed module is called. Templates of smp/routed.h end here;
// the layer above (module server, tracer) decides through one interface (paper §4.1).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <typeinfo>
#include <vector>

#include "smp/export.h"

namespace torch::nn {
class Module;
}

namespace smp {

/// A value taken apart for the wire: plain bytes, and the tensors it holds, in order of visit.
struct Packet {
  std::string bytes;
  std::vector<at::Tensor> tensors;
};

/// Runs a registered call on the owner: takes the arguments out of `arguments`, calls the method
/// of `module`, and returns its packed result.
using Thunk = Packet (*)(torch::nn::Module& module, Packet& arguments);

/// One remotely callable method of one module type with one signature.
struct CallEntry {
  std::uint64_t key;      ///< equal on all ranks that run the same binary
  const char* signature;  ///< readable, for messages: "Tensor BlockImpl::forward(const Tensor&)"
  Thunk run;              ///< nullptr if an argument or the result cannot cross ranks
  const std::type_info* type = nullptr;  ///< tells equally named types of two files apart
};

/// Adds `entry` to the process's registry and returns it. The same key with another signature is an
/// error that is reported at smp::init.
SMP_API const CallEntry& register_call(const CallEntry& entry);
/// The entry of `key`, or nullptr.
SMP_API const CallEntry* find_call(std::uint64_t key) noexcept;
/// Order-independent hash over all registered calls; ranks compare it at start.
SMP_API std::uint64_t call_registry_hash() noexcept;

/// The part of a routed module that the library sees: its place in the model and its owner.
class SMP_API RoutedBase {
 public:
  RoutedBase();
  virtual ~RoutedBase();

  /// The module this is part of.
  virtual torch::nn::Module& smp_module() noexcept = 0;
  /// The user's class name.
  virtual std::string smp_type_name() const = 0;
  /// Why calls of this module cannot cross ranks, or empty. Such a module runs with its parent.
  virtual std::string smp_cannot_cross() const = 0;
  /// False for leaves that never draw random numbers (Linear, LayerNorm, ...): no stream is set up.
  virtual bool smp_draws_random() const noexcept = 0;

  /// Set by DistributedModel; constant after placement.
  struct Place {
    int index = -1;    ///< number of the module in the model, -1 outside a DistributedModel
    int owner = -1;    ///< pp_rank that runs it, -1 before placement
    std::string path;  ///< dotted module path
  };
  Place smp_place;

  /// pp_rank of the smp::partition scope in which the module was created (smp/placement.h).
  std::optional<int> smp_pin;
};

/// Decides where a routed module runs. One implementation at a time serves a rank.
class SMP_API CallSink {
 public:
  virtual ~CallSink();

  enum class Where {
    kPlain,   ///< no step is running: call it like any module
    kHere,    ///< this rank owns it: bracket the call with enter() and leave()
    kRemote,  ///< another rank owns it: call()
  };
  /// Where a call of `module`, owned by pp_rank `owner`, runs now.
  virtual Where where(const RoutedBase& module, int owner) = 0;

  /// Brackets a call that runs here. enter() returns a token for leave().
  virtual void* enter(RoutedBase& module) = 0;
  virtual void leave(RoutedBase& module, void* token) noexcept = 0;

  /// Runs `entry` of `module` on pp_rank `owner`; suspends the fiber until the answer is here.
  /// The tensors of `arguments` carry their autograd history, those of the result too.
  /// Returns nothing if the stack is being unwound and the step is failing: then the caller
  /// returns an empty value instead of throwing (§4.14).
  /// @throws RemoteError with the original's text; StepAborted if the step failed elsewhere.
  virtual std::optional<Packet> call(RoutedBase& module, const CallEntry& entry, int owner,
                                     Packet&& arguments) = 0;
};

/// The sink of the running fiber's rank; nullptr outside the library's threads. A routed module
/// that is placed and called on a foreign thread during a step throws UsageError naming it.
SMP_API CallSink* current_call_sink(const RoutedBase& module);

/// Brackets a call that runs on its own rank.
class LocalCall {
 public:
  LocalCall(CallSink& sink, RoutedBase& module)
      : sink_(sink), module_(module), token_(sink.enter(module)) {}
  ~LocalCall() { sink_.leave(module_, token_); }
  LocalCall(const LocalCall&) = delete;
  LocalCall& operator=(const LocalCall&) = delete;

 private:
  CallSink& sink_;
  RoutedBase& module_;
  void* token_;
};

}  // namespace smp
