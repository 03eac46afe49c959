// server/calls/call_router.cpp: a call becomes a request, and its answer gets a history.
#include "server/calls/call_router.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/module.h>

#include <exception>
#include <new>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "d2d/channel/frame.h"
#include "module/kept_results.h"
#include "module/node_pointer.h"
#include "server/calls/promised_arguments.h"
#include "server/calls/remote_call.h"
#include "server/protocol/remote_exception.h"
#include "server/replay/step_closing.h"
#include "server/running/inside_node.h"
#include "server/values/clone_on_write.h"
#include "server/values/hooked_arguments.h"
#include "server/values/link_follower.h"
#include "server/values/output_links.h"
#include "server/values/tensor_forms.h"

namespace smp::server {
namespace {

/// Brackets a remote call that a body itself makes, for the check of flags that bodies switch.
class BodyCall {
 public:
  explicit BodyCall(const RoutedBase& module) : module_(module) {
    auto* scope = ExecutionScope::current();
    if (!scope->calls_from_body()) return;
    scope_ = scope;
    scope_->settings().body_call_begins(module_);
  }
  ~BodyCall() {
    if (scope_ != nullptr) scope_->settings().body_call_ends(module_);
  }
  BodyCall(const BodyCall&) = delete;
  BodyCall& operator=(const BodyCall&) = delete;

 private:
  ExecutionScope* scope_ = nullptr;
  const RoutedBase& module_;
};

ModuleId id_of(const RoutedBase& module) { return ModuleId{module.smp_place.index}; }

}  // namespace

// ---- calls that run here -----------------------------------------------------------------------

CallRouter::Where CallRouter::where(const RoutedBase& module) {
  const auto& place = module.smp_place;
  if (!place.placed()) {
    SMP_REQUIRE(place.index != kWaitsForPlace || !in_step(), "rank ", core_.port.name(),
                ": module '", place.path, "' (", module.smp_type_name(),
                ") was called in a step, but its smp::DistributedModel is not placed yet: no trial "
                "run showed that a step uses it. Call place() of the model before the step, on "
                "every rank, or use it in one of the first steps of this function");
    return Where::kPlain;
  }
  const bool here = place.owner == core_.port.rank();
  if (!in_step()) {
    SMP_REQUIRE(here, "rank ", core_.port.name(), ": module '", place.path, "' lives on rank ",
                core_.port.name(place.owner),
                " and was called outside of a step; call the model in the body of smp::step");
    return Where::kPlain;
  }
  return here ? Where::kHere : Where::kRemote;
}

bool CallRouter::in_step() const noexcept {
  return core_.step != nullptr && ExecutionScope::current() != nullptr;
}

bool CallRouter::joins(const RoutedBase& first, const RoutedBase& next) {
  return first.smp_place.owner == next.smp_place.owner;
}

/// Notes in the step's work order that the execution begins. All bodies are launched at once, so a
/// body counts as begun only when it calls its first module.
void CallRouter::note_work(const ExecutionScope& scope) const noexcept {
  const auto& own = scope.identity();
  core_.step->work.note(own.phase, own.microbatch);
}

void CallRouter::enter(RoutedBase& module, Space& space) {
  if (auto& again = *ExecutionScope::current(); again.replays()) {
    new (space.bytes) CallScope(again, id_of(module));
    return;
  }
  if (!inside_node()) {
    core_.turns.take_turn();
    states_.await_order(id_of(module));
  }
  auto& execution = *ExecutionScope::current();
  note_work(execution);
  const bool from_body = execution.calls_from_body();
  states_.enter(*new (space.bytes) CallScope(execution, id_of(module)));
  if (from_body) states_.watch_statistics_of_body();
}

void CallRouter::leave(Space& space) noexcept {
  auto* call = std::launder(reinterpret_cast<CallScope*>(space.bytes));
  if (!call->replays()) states_.leave(*call);
  call->~CallScope();
}

// ---- calls that leave --------------------------------------------------------------------------

std::optional<Packet> CallRouter::call(RoutedBase& module, const CallEntry& entry, PpRank owner,
                                       Packet&& arguments, const CallTraits& traits) {
  auto* const kept = module::KeptResults::current();
  if (kept != nullptr && kept->replays()) {
    static_cast<void>(ExecutionScope::current()->next_call(traits.calls));  // later calls keep keys
    return kept->take();
  }
  if (failures_.empty_because_unwinding()) return std::nullopt;
  SMP_REQUIRE(!inside_node(), "rank ", core_.port.name(), ": module '", module.smp_place.path,
              "' lives on rank ", core_.port.name(owner),
              " and was called inside the backward of an autograd node, which cannot wait for it; "
              "call it in a tensor hook, or place it on this rank");
  SMP_REQUIRE(!at::in_parallel_region(), "rank ", core_.port.name(), ": module '",
              module.smp_place.path, "' lives on rank ", core_.port.name(owner),
              " and was called inside at::parallel_for, where nothing can wait for it; call it "
              "outside, or place it on this rank");
  states_.require_unchanged_copy(core_.scopes.modules.at(id_of(module)));
  const BodyCall from_body(module);
  auto& scope = *ExecutionScope::current();
  note_work(scope);
  if (scope.calls_from_body()) states_.watch_statistics_of_body();
  fetch_what_is_not_passed_on(arguments.tensors);
  OutputUses uses;
  auto promised = name_promises(arguments.tensors, owner, uses);
  auto request = forward_request(module, entry, std::move(arguments), traits.calls);
  // The answer may be about them as they are here.
  const c10::SmallVector<at::Tensor, 4> own(request.arguments.tensors.begin(),
                                            request.arguments.tensors.end());
  const bool may_be_promised = may_promise(traits);
  const bool recorded = core_.options.static_mode;
  const auto key = may_be_promised || recorded ? ExpectedResults::key_of(request) : 0;
  auto* const place = recorded ? follow_record(request, key) : nullptr;
  for (const auto& input : promised) request.arguments.tensors[input.index].reset();
  request.promised = std::move(promised);
  request.forms = take_forms(request.arguments.tensors, "argument", module.smp_place.path);
  while (request.requires_grad.size() < request.arguments.tensors.size()) {
    request.requires_grad.push_back(false);
  }
  ++core_.counters.forward_requests;
  auto* expected = may_be_promised ? expected_.find(key) : nullptr;
  if (expected != nullptr && expected->promise_next()) {
    return promise(std::move(request), owner, *expected, own, std::move(uses), place);
  }
  CallAnswer answer;
  auto sent = OutgoingCall::make(line_, owner, request, ForwardState::kAsked, 0);
  auto response = await_and_keep(*sent, answer, request);
  if (!response) return std::nullopt;
  if (response->settings) request.settings = line_->take_settings(module, *response->settings);
  sent->use(response->record, response->settings ? &request.settings : nullptr);
  restore_forms(response->forms, response->result.tensors);
  if (may_be_promised && expected == nullptr) {
    expected_.learn(key, *response, request.modes.grad);
  }
  if (kept != nullptr) refuse_changes_that_are_kept(module, *response, own.size());
  attach_history(*response, std::move(sent), own);
  if (kept != nullptr) kept->keep(response->result);
  return std::move(response->result);
}

/// Nothing: the step failed, and the stack unwinds already.
std::optional<ForwardResponse> CallRouter::await_result(OutgoingCall& call, CallAnswer& answer,
                                                        ForwardRequest& request) {
  auto& scope = *ExecutionScope::current();
  request.request = call.ask(answer);
  send(call.facts().owner, request, !request.promised.empty() || scope.outgoing().has_open());
  call.wait();
  if (answer.response) return std::move(answer.response);
  if (failures_.swallow_while_unwinding()) return std::nullopt;
  if (!answer.failure) failures_.throw_aborted();
  // An earlier call may be what failed.
  if (scope.outgoing().has_open()) scope.outgoing().finish();
  call.note_thrown();
  throw_remote(*answer.failure);
}

/// Where results are kept, so is what the call throws, but for the end of the step.
std::optional<ForwardResponse> CallRouter::await_and_keep(OutgoingCall& call, CallAnswer& answer,
                                                          ForwardRequest& request) {
  auto* const kept = module::KeptResults::current();
  if (kept == nullptr) return await_result(call, answer, request);
  try {
    return await_result(call, answer, request);
  } catch (const StepAborted&) {
    throw;
  } catch (...) {
    kept->keep_thrown(std::current_exception());
    throw;
  }
}

void CallRouter::refuse_changes_that_are_kept(const RoutedBase& module,
                                              const ForwardResponse& response,
                                              std::size_t arguments) const {
  const auto links =
      OutputLinks::from_note(response.links, response.result.tensors.size(), arguments);
  SMP_REQUIRE_AS(UnsupportedError, links.changes.empty(), "rank ", core_.port.name(), ": module '",
                 module.smp_place.path,
                 "' changed an argument in place, and its caller has activation checkpointing, so "
                 "the change would not be repeated; do not checkpoint the caller, or pass clone()");
}

/// True if a call may return promises. Calls that hooks make are awaited, and those of which the
/// results are kept.
bool CallRouter::may_promise(const CallTraits& traits) const {
  return line_->may_pass_on() && traits.only_tensors && module::KeptResults::current() == nullptr &&
         ExecutionScope::current()->identity().phase == schedule::Phase::kForward &&
         !c10::InferenceMode::is_enabled();
}

/// Static mode: where the call stands among those of its execution.
RecordedFlow::Call* CallRouter::follow_record(const ForwardRequest& request, std::uint64_t kind) {
  auto& scope = *ExecutionScope::current();
  const auto [call, departs] = flow_.next(scope.outgoing().way(), kind);
  if (departs && core_.step->keeps_to_record) tell_departure(request);
  return call;
}

void CallRouter::tell_departure(const ForwardRequest& request) {
  constexpr int kMostTold = 8;
  if (departures_told_ >= kMostTold) return;
  base::log(base::LogLevel::kInfo, "rank ", core_.port.name(), ": static_mode: microbatch ",
            request.microbatch, " of step ", core_.step->number, " calls module '",
            core_.scopes.modules.path(request.module),
            "' where no step before did, or with other types; this way is recorded as well",
            ++departures_told_ == kMostTold ? "; more of this is not told" : "");
}

Packet CallRouter::promise(ForwardRequest&& request, PpRank owner, ExpectedResult& expected,
                           at::ArrayRef<at::Tensor> own, OutputUses&& uses,
                           RecordedFlow::Call* recorded) {
  auto& scope = *ExecutionScope::current();
  request.keep_outputs = expected.passed_on || !expected.fetched;
  request.withhold_outputs = request.keep_outputs && !expected.fetched;
  if (recorded != nullptr && core_.step->keeps_to_record && request.keep_outputs) {
    request.ahead = recorded->ahead();
  }
  // The caller may write to them before they have left.
  for (auto& tensor : request.arguments.tensors) {
    if (tensor.defined() && tensor.nbytes() > d2d::kInlineBytes) tensor = clone_on_write(tensor);
  }
  auto call =
      OutgoingCall::make(line_, owner, request, ForwardState::kPromised, expected.outputs.size());
  auto outputs = std::make_shared<PromisedOutputs>(std::move(call), request, expected, own,
                                                   std::move(uses), recorded);
  send(owner, request, true);
  scope.outgoing().add(outputs);
  ++core_.counters.promised;
  return PromisedOutputs::promises(outputs);
}

/// Sends `request`, and tells the ranks that have its promised arguments to send them to `owner`.
void CallRouter::send(PpRank owner, ForwardRequest& request, bool in_row) {
  auto& scope = *ExecutionScope::current();
  if (in_row) {
    request.row = scope.outgoing().row();
    request.place = scope.outgoing().next_place(owner);
  }
  request.releases = line_->take_releases(owner);
  core_.scopes.recorder.note(RequestKind::kAsked, core_.port.rank(), request.request);
  try {
    core_.port.send(owner, request);
  } catch (...) {
    if (in_row) scope.outgoing().give_back_place(owner);
    throw;
  }
  core_.counters.passed_on += request.promised.size();
  for (const auto& input : request.promised) {
    if (input.source.owner == owner || input.ahead) continue;  // it asks itself; nobody need ask
    core_.port.send(input.source.owner, Message(PassOn{input.source.request, input.source.output,
                                                       owner, request.request, input.index}));
  }
}

ForwardRequest CallRouter::forward_request(RoutedBase& module, const CallEntry& entry,
                                           Packet&& arguments, std::uint32_t calls) const {
  auto& scope = *ExecutionScope::current();
  ForwardRequest request;
  request.module = id_of(module);
  request.call = entry.key;
  request.microbatch = scope.identity().microbatch;
  request.weight = core_.step->loss_weights.at(static_cast<std::size_t>(request.microbatch));
  request.position = scope.next_call(calls);
  // What a hook calls comes after the forward, whether or not its owner has heard that it is done.
  request.after_first_backward =
      scope.identity().after_first_backward || scope.identity().phase == schedule::Phase::kBackward;
  auto& settings = core_.scopes.settings;
  request.settings = settings.read(settings.flags().subtree(module.smp_module()));
  request.modes = ExecutionModes::capture();
  const auto& tensors = arguments.tensors;
  // Without grad mode too: the module may ask, hook an argument, or switch the mode on.
  const bool any = request.modes.grad || !c10::InferenceMode::is_enabled();
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    request.requires_grad.push_back(any && tensors[i].defined() && tensors[i].requires_grad() &&
                                    !stands_before(tensors, i));
  }
  request.arguments = std::move(arguments);
  return request;
}

void CallRouter::attach_history(ForwardResponse& response, std::shared_ptr<OutgoingCall> call,
                                at::ArrayRef<at::Tensor> arguments) {
  const auto& facts = call->facts();
  const char* const path = facts.path;
  const auto hooked = watch_hooked_arguments(response.hooked, arguments, path);
  if (!response.record && response.links.empty()) return;
  NodePointer<RemoteCall> node;
  if (response.record) {
    line_->note_record(facts.step, facts.microbatch);
    node = make_node<RemoteCall>(std::move(call));
    node->keep_gradients(hooked);
    node->set_inner(std::move(response.inner));
    node->set_next_edges(torch::autograd::collect_next_edges(arguments));
  }
  follow_links(response.links, response.result.tensors, arguments, response.requires_grad, node,
               path);
}

}  // namespace smp::server
