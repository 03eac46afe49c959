// smp/detail/call.h: what happens when a routed module is called. Templates of smp/detail/routed.h end here, in
// route(); the layer above (module server, tracer) decides through one interface (paper §4.1).
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <typeinfo>
#include <vector>

#include "smp/detail/export.h"
#include "smp/rank.h"
#include "smp/state.h"

namespace torch::nn {
class Module;
}

namespace smp {

/// A value taken apart for the wire: plain bytes, and the tensors it holds, in order of visit.
struct Packet {
  std::string bytes;
  std::vector<at::Tensor> tensors;
};

class RoutedBase;

/// Runs a registered call on the owner: takes the arguments out of `arguments`, calls the method
/// of `module`, and returns its packed result.
using Thunk = Packet (*)(RoutedBase& module, Packet& arguments);

/// One remotely callable method of one module type with one signature.
struct CallEntry {
  std::uint64_t key;      ///< equal on all ranks that run the same binary
  const char* signature;  ///< readable, for messages: "Tensor BlockImpl::forward(const Tensor&)"
  Thunk run;              ///< nullptr if an argument or the result cannot cross ranks
  const std::type_info* type = nullptr;  ///< tells equally named types of two files apart
  /// Stands for several calls of the program, made by what it runs; else it is one itself.
  bool joint = false;
};

/// Adds `entry` to the process's registry and returns it. The same key with another signature is an
/// error that is reported at smp::init. Threads: any, as for the two functions below.
SMP_API const CallEntry& register_call(const CallEntry& entry);
/// The entry of `key`, or nullptr.
SMP_API const CallEntry* find_call(std::uint64_t key) noexcept;
/// Order-independent hash over all registered calls; ranks compare it at start.
SMP_API std::uint64_t call_registry_hash() noexcept;

/// What a caller knows of a call that its entry does not say.
struct CallTraits {
  std::uint32_t calls = 1;    ///< of the program, for which this one stands
  bool only_tensors = false;  ///< the result is a fixed number of tensors and nothing else
};

/// What runs in place of a routed module: its calls go there, its parameters are used there
/// (smp/detail/tensor_parallelism.h). Threads: the rank's.
class SMP_API StandIn {
 public:
  virtual ~StandIn();
  /// As CallEntry::run of `entry`, which is one of the module that it stands in for.
  virtual Packet run(const CallEntry& entry, Packet& arguments) = 0;
  virtual torch::nn::Module& module() noexcept = 0;

  /// Its parameters and children are those of the module that it stands in for, too.
  bool in_tree = false;
};

/// The part of a routed module that the library sees: its place in the model and its owner.
class SMP_API RoutedBase {
 public:
  RoutedBase();
  virtual ~RoutedBase();

  /// The module this is part of.
  virtual torch::nn::Module& smp_module() noexcept = 0;
  /// The module as a class of the user's, if `impl` is the one that was made routed; else nullptr.
  /// In place of a dynamic_cast across the layers of a routed module, because each request asks on
  /// its way to the method.
  virtual void* smp_as(const std::type_info& impl) noexcept = 0;
  /// The user's class name.
  virtual std::string smp_type_name() const = 0;
  /// Why calls of this module cannot cross ranks, or empty. Such a module runs with its parent.
  virtual std::string smp_cannot_cross() const = 0;
  /// False for leaves that never draw random numbers (Linear, LayerNorm, ...): no stream is set up.
  virtual bool smp_draws_random() const noexcept = 0;
  /// Where the user's members are; of size 0 if nothing is known.
  virtual OwnPart smp_own_part() const noexcept { return {}; }
  /// What the program says about members that forward writes.
  virtual StateUse smp_state_use() const noexcept { return StateUse::kWatched; }

  /// Set by DistributedModel; constant after placement.
  struct Place {
    int index = -1;    ///< number of the module in the session, -1 outside a DistributedModel
    PpRank owner;      ///< that runs it; below 0 before placement
    std::string path;  ///< dotted module path
    bool placed() const noexcept { return owner.value() >= 0; }
  };
  Place smp_place;

  /// pp_rank of the smp::partition scope in which the module was created (smp/placement.h).
  std::optional<int> smp_pin;
  /// Of the smp::tensor_parallelism scope in which the module was created, or as set later.
  std::optional<bool> smp_tensor_parallel;
  /// Set by DistributedModel, where the module is spread over ranks.
  std::shared_ptr<StandIn> smp_stand_in;
};

/// Serves the calls of routed modules for one rank. One handler at a time serves a fiber. Threads:
/// the rank's.
class SMP_API CallHandler {
 public:
  virtual ~CallHandler();

  enum class Where {
    kPlain,   ///< no step is running: call it like any module
    kHere,    ///< this rank owns it: bracket the call with enter() and leave()
    kRemote,  ///< another rank owns it: call()
  };
  /// Where a call of `module` runs now.
  virtual Where where(const RoutedBase& module) = 0;
  /// Whether the running fiber is in a step: its body, or a module.
  virtual bool in_step() const noexcept = 0;
  /// Whether a call of `next` that directly follows a remote one of `first`, with its result, may
  /// travel in the same request.
  virtual bool joins(const RoutedBase& first, const RoutedBase& next) = 0;

  /// Room on the caller's stack for what a handler notes about a call that runs here.
  struct Space {
    alignas(std::max_align_t) std::byte bytes[320];
  };
  /// Brackets a call that runs here; nothing is allocated. Brackets of a fiber nest.
  virtual void enter(RoutedBase& module, Space& space) = 0;
  virtual void leave(Space& space) noexcept = 0;

  /// Runs `entry` of `module` on `owner`; suspends the fiber until the answer is here, or returns
  /// promised tensors at once (smp/wait.h). The tensors of `arguments` carry their autograd
  /// history, those of the result too.
  /// @return nothing if the stack is being unwound and the step is failing: then the caller returns
  ///         an empty value instead of throwing (docs/design.md, Failure)
  /// @throws RemoteError with the original's text; StepAborted if the step failed elsewhere.
  virtual std::optional<Packet> call(RoutedBase& module, const CallEntry& entry, PpRank owner,
                                     Packet&& arguments, const CallTraits& traits) = 0;
};

/// The handler of the running fiber; nullptr outside the library's threads.
/// @throws UsageError  `module` is placed, and this is a foreign thread during a step
[[nodiscard]] SMP_API CallHandler* current_call_handler(const RoutedBase& module);

/// Brackets a call that runs on its own rank.
class LocalCall {
 public:
  LocalCall(CallHandler& handler, RoutedBase& module) : handler_(handler) {
    handler_.enter(module, space_);
  }
  ~LocalCall() { handler_.leave(space_); }
  LocalCall(const LocalCall&) = delete;
  LocalCall& operator=(const LocalCall&) = delete;

 private:
  CallHandler& handler_;
  CallHandler::Space space_;
};

/// The one place where a call of a routed module is decided: calls `here()` if it runs on this
/// rank, else `away(handler)`.
template <class Here, class Away>
auto route(RoutedBase& module, Here&& here, Away&& away) -> decltype(here()) {
  CallHandler* const handler = current_call_handler(module);
  const auto where = handler == nullptr ? CallHandler::Where::kPlain : handler->where(module);
  if (where == CallHandler::Where::kRemote) return away(*handler);
  if (where == CallHandler::Where::kPlain) return here();
  const LocalCall bracket(*handler, module);
  return here();
}

/// How many of a row of modules, which are called one after the other, each with the result of the
/// one before, go into one request: 2 or more; 0: the first is to be called by itself.
/// @param neighbour  the module at a place in the row; nullptr: the row ends, or it cannot be sent
[[nodiscard]] SMP_API std::size_t joint_calls(
    CallHandler* handler, c10::function_ref<const RoutedBase*(std::size_t)> neighbour);

}  // namespace smp
