// smp/detail/call.h: what happens when a routed module is called. Templates of smp/detail/routed.h
// end here, in route(); the layer above (module server, tracer) decides through one interface
// (paper §4.1).
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
  /// True if the entry stands for several calls of the program, which its `run` makes; false for a
  /// single call.
  bool joint = false;
};

/// Adds `entry` to the process's registry and returns it. The same key with another signature is an
/// error that is reported at smp::init. Threads: any, as for the two functions below.
SMP_API const CallEntry& register_call(const CallEntry& entry);
/// Returns the entry of `key`, or nullptr if there is none.
SMP_API const CallEntry* find_call(std::uint64_t key) noexcept;
/// Returns a hash over all registered calls that does not depend on their order; ranks compare it
/// at start.
SMP_API std::uint64_t call_registry_hash() noexcept;

/// The facts about a call that its caller knows and its entry does not contain.
struct CallTraits {
  std::uint32_t calls = 1;    ///< number of calls of the program that this one stands for
  bool only_tensors = false;  ///< the result is a fixed number of tensors and nothing else
};

/// A module that runs in place of a routed module: the calls of the routed module go to it, and its
/// parameters are used instead (smp/detail/tensor_parallelism.h). Threads: the rank's.
class SMP_API StandIn {
 public:
  virtual ~StandIn();
  /// Runs `entry`, a call of the module that it stands in for, like CallEntry::run: takes the
  /// arguments out of `arguments` and returns the packed result.
  virtual Packet run(const CallEntry& entry, Packet& arguments) = 0;
  virtual torch::nn::Module& module() noexcept = 0;

  /// True if it has parameters of its own. Then its parameters and children take the place of those
  /// of the module that it stands in for, in the model's module tree.
  bool in_tree = false;
};

/// Runs the calls of a routed module on its own rank in its own way, for example twice. Threads:
/// the rank's.
class SMP_API CallWrapper {
 public:
  virtual ~CallWrapper();
  /// True if a call of `module` made now goes to run(); it is run plainly otherwise.
  virtual bool applies(const RoutedBase& module) const = 0;
  /// Runs `entry` of `module`: takes the arguments out of `arguments` and returns the packed
  /// result, as `plain` does, which runs the method.
  virtual Packet run(RoutedBase& module, const CallEntry& entry, Packet& arguments,
                     Thunk plain) = 0;
};

/// The part of a routed module that the library sees: its place in the model and its owner.
class SMP_API RoutedBase {
 public:
  RoutedBase();
  virtual ~RoutedBase();

  /// Returns the module that this is a part of.
  virtual torch::nn::Module& smp_module() noexcept = 0;
  /// Returns the module as the user's class if `impl` is the class that was made routed, else
  /// nullptr. It replaces a dynamic_cast through the layers of a routed module, because every
  /// request asks this on its way to the method.
  virtual void* smp_as(const std::type_info& impl) noexcept = 0;
  /// Returns the name of the user's class.
  virtual std::string smp_type_name() const = 0;
  /// Returns why calls of this module cannot cross ranks, or an empty text if they can. A module
  /// that cannot be called across ranks runs with its parent.
  virtual std::string smp_cannot_cross() const = 0;
  /// False for leaf modules that never draw random numbers (Linear, LayerNorm, ...); calls of these
  /// set up no random stream.
  virtual bool smp_draws_random() const noexcept = 0;
  /// Returns the memory of the user's members; its size is 0 if it is not known.
  virtual OwnPart smp_own_part() const noexcept { return {}; }
  /// Returns what the program declares about members that forward writes (smp/state.h).
  virtual StateUse smp_state_use() const noexcept { return StateUse::kWatched; }

  /// The place of the module in the model and its owner. Set by DistributedModel; constant after
  /// placement.
  struct Place {
    int index = -1;    ///< number of the module in the session, -1 outside a DistributedModel
    PpRank owner;      ///< stage that runs it; below 0 before placement
    std::string path;  ///< dotted module path
    bool placed() const noexcept { return owner.value() >= 0; }
  };
  Place smp_place;

  /// The pp_rank of the smp::partition scope in which the module was created (smp/placement.h);
  /// empty outside of such scopes.
  std::optional<int> smp_pin;
  /// The mark of the smp::tensor_parallelism scope in which the module was created, or the one that
  /// set_tensor_parallelism() set later; empty without a mark.
  std::optional<bool> smp_tensor_parallel;
  /// The module that runs in place of this one, if this one is spread over ranks; else nullptr. Set
  /// by DistributedModel.
  std::shared_ptr<StandIn> smp_stand_in;
  /// What runs the calls of this module instead of its method; nullptr for none.
  std::shared_ptr<CallWrapper> smp_wrapper;
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
  /// Returns where a call of `module` runs now.
  virtual Where where(const RoutedBase& module) = 0;
  /// True if the running fiber is in a step: in its body or in a module.
  virtual bool in_step() const noexcept = 0;
  /// True if a call of `next` may travel in the same request as a remote call of `first` that it
  /// directly follows and whose result it takes.
  virtual bool joins(const RoutedBase& first, const RoutedBase& next) = 0;

  /// Space on the caller's stack in which a handler keeps notes about a call that runs here.
  struct Space {
    alignas(std::max_align_t) std::byte bytes[320];
  };
  /// enter() and leave() bracket a call that runs on this rank. They allocate nothing, and the
  /// brackets of a fiber nest.
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

/// Returns the handler of the running fiber; nullptr outside the library's threads.
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

/// Returns how many modules of a row go into one request, where each module is called with the
/// result of the one before: 2 or more, or 0 if the first module is to be called by itself.
/// @param neighbour  returns the module at a place in the row; nullptr if the row ends there or the
///                   module cannot be sent
[[nodiscard]] SMP_API std::size_t joint_calls(
    CallHandler* handler, c10::function_ref<const RoutedBase*(std::size_t)> neighbour);

}  // namespace smp
