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
#include "module/node_pointer.h"
#include "server/calls/promised_arguments.h"
#include "server/calls/promised_call.h"
#include "server/calls/remote_call.h"
#include "server/promises/awaited_result.h"
#include "server/protocol/remote_exception.h"
#include "server/replay/step_closing.h"
#include "server/running/inside_node.h"
#include "server/values/clone_on_write.h"
#include "server/values/hooked_arguments.h"
#include "server/values/link_follower.h"
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
    scope_->body_call_begins(module_);
  }
  ~BodyCall() {
    if (scope_ != nullptr) scope_->body_call_ends(module_);
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
  if (!place.placed()) return Where::kPlain;
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
  states_.leave(*call);
  call->~CallScope();
}

// ---- calls that leave --------------------------------------------------------------------------

std::optional<Packet> CallRouter::call(RoutedBase& module, const CallEntry& entry, PpRank owner,
                                       Packet&& arguments, const CallTraits& traits) {
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
  auto response = await_result(request, owner);
  if (!response) return std::nullopt;
  if (response->settings) request.settings = take_settings(module, *response->settings);
  restore_forms(response->forms, response->result.tensors);
  if (may_be_promised && expected == nullptr) {
    expected_.learn(key, *response, request.modes.grad);
  }
  attach_history(*response, owner, request, own);
  return std::move(response->result);
}

/// Sends `request` and suspends until its answer has come; nullopt if the step failed and the stack
/// is being unwound already. @throws what the call threw
std::optional<ForwardResponse> CallRouter::await_result(ForwardRequest& request, PpRank owner) {
  auto& scope = *ExecutionScope::current();
  AwaitedResult awaited;
  const OpenRequest open(core_, awaited);
  request.request = open.id();
  send(owner, request, !request.promised.empty() || scope.has_open_calls());
  awaited.wait({"forward", core_.scopes.modules.path(request.module),
                core_.port.name(owner).value(), request.microbatch});
  if (awaited.failure) {
    if (failures_.swallow_while_unwinding()) return std::nullopt;
    // An earlier call may be what failed.
    if (scope.has_open_calls()) scope.finish_calls();
    throw_remote(*awaited.failure);
  }
  if (!awaited.response) {
    if (failures_.swallow_while_unwinding()) return std::nullopt;
    failures_.throw_aborted();
  }
  return std::move(awaited.response);
}

/// Sets the flags that the remote execution switched on this rank's copy of the module, and returns
/// the flags of that copy.
Settings CallRouter::take_settings(RoutedBase& module, const Settings& changed) {
  auto& board = core_.scopes.settings;
  const auto& part = board.flags().subtree(module.smp_module());
  board.write(part, changed);
  return board.read(part);
}

/// True if a call may return promises. Calls that hooks make are awaited.
bool CallRouter::may_promise(const CallTraits& traits) const {
  return may_pass_on() && traits.only_tensors &&
         ExecutionScope::current()->identity().phase == schedule::Phase::kForward &&
         !c10::InferenceMode::is_enabled();
}

/// True if tensors may go from owner to owner. False where order within a microbatch may matter
/// beyond what requests say: with modules that keep state, and in steps that run one microbatch at
/// a time.
bool CallRouter::may_pass_on() const {
  return core_.options.promised_outputs && core_.in_good_step() &&
         !core_.step->task.one_at_a_time && !core_.scopes.modules.any_in_order();
}

/// Returns the recorded call that follows the calls of this execution so far (static mode); nullptr
/// if too many calls are recorded.
RecordedFlow::Call* CallRouter::follow_record(const ForwardRequest& request, std::uint64_t kind) {
  auto& scope = *ExecutionScope::current();
  const auto [call, departs] = flow_.next(scope.way(), kind);
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
  auto call = std::make_shared<PromisedCall>(*this, owner, request, expected, own, std::move(uses),
                                             recorded);
  request.request = core_.step->requests.add(call.get());
  call->set_request(request.request);
  send(owner, request, true);
  scope.add(call);
  ++core_.counters.promised;
  return call->promises();
}

/// Sends `request`, and tells the ranks that have its promised arguments to send them to `owner`.
void CallRouter::send(PpRank owner, ForwardRequest& request, bool in_row) {
  auto& scope = *ExecutionScope::current();
  if (in_row) {
    request.row = scope.row();
    request.place = scope.next_place(owner);
  }
  request.releases = take_releases(owner);
  core_.scopes.recorder.note(RequestKind::kAsked, core_.port.rank(), request.request);
  try {
    core_.port.send(owner, request);
  } catch (...) {
    if (in_row) scope.give_back_place(owner);
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

void CallRouter::attach_history(ForwardResponse& response, PpRank owner,
                                const ForwardRequest& request, at::ArrayRef<at::Tensor> arguments) {
  auto& tensors = response.result.tensors;
  const auto hooked = watch_hooked_arguments(response.hooked, arguments,
                                             core_.scopes.modules.at(request.module).lasting_path);
  if (!response.record && response.links.empty()) return;
  NodePointer<RemoteCall> node;
  if (response.record) {
    note_record(core_.step->number, request.microbatch);
    node = make_node<RemoteCall>(*this, owner, response.record, request.module, request.settings);
    node->keep_gradients(hooked);
    node->set_inner(std::move(response.inner));
    node->set_next_edges(torch::autograd::collect_next_edges(arguments));
  }
  follow_links(response.links, tensors, arguments, response.requires_grad, node,
               core_.scopes.modules.path(request.module));
}

// ---- answers -----------------------------------------------------------------------------------

void CallRouter::note_answer(RequestId request) {
  core_.scopes.recorder.note(RequestKind::kReceived, core_.port.rank(), request);
}

void CallRouter::on_message(ForwardResponse&& response) {
  note_answer(response.request);
  if (const auto target = core_.step->requests.take(response.request)) {
    (*target)->on_forward(std::move(response));
  }
}

void CallRouter::on_message(BackwardResponse&& response) {
  note_answer(response.request);
  if (const auto target = core_.step->requests.take(response.request)) {
    (*target)->on_backward(std::move(response));
  }
}

void CallRouter::on_message(ErrorResponse&& response) {
  note_answer(response.request);
  if (const auto target = core_.step->requests.take(response.request)) {
    (*target)->on_error(std::move(response.failure));
  }
}

void CallRouter::on_message(PassedOn&& message) {
  if (const auto target = core_.step->requests.take(message.consumer)) {
    (*target)->on_passed_on(std::move(message));
  }
}

// ---- backward of remote calls ------------------------------------------------------------------

void CallRouter::request_backward(PpRank owner, BackwardRequest&& request) {
  request.releases = take_releases(owner);
  core_.scopes.recorder.note(RequestKind::kAsked, core_.port.rank(), request.request);
  core_.port.send(owner, request);
  ++core_.counters.backward_requests;
  core_.counters.passed_on += request.promised.size();
  core_.step->closing->backward_asked(owner, request);
}

void CallRouter::note_record(std::int64_t step, int microbatch) noexcept {
  if (!core_.in_good_step() || step != core_.step->number) return;
  core_.step->closing->record_kept(microbatch);
}

void CallRouter::backward_not_begun(PpRank owner, std::int64_t step, int microbatch) noexcept {
  if (!core_.in_good_step() || step != core_.step->number) return;
  core_.step->closing->backward_not_begun(owner, microbatch);
}

void CallRouter::release(PpRank owner, std::int64_t step, int microbatch, RecordId record) {
  if (!core_.in_good_step() || step != core_.step->number) return;
  core_.step->closing->record_gone(microbatch);
  to_release_.push_back({owner, record});
  if (core_.port.receiving()) return core_.server.wake.signal();
  try {
    flush_releases();
  } catch (...) {  // a peer is lost, and this may be a destructor
    failures_.fail_step(std::current_exception());
  }
}

void CallRouter::release_outputs(PpRank owner, std::int64_t step, RequestId request) noexcept {
  if (!core_.in_good_step() || step != core_.step->number) return;
  outputs_to_release_.resize(static_cast<std::size_t>(core_.port.size()));
  outputs_to_release_[owner.index()].push_back(request);
  if (!core_.step->keeps_to_record) core_.server.wake.signal();
}

/// Takes the releases that travel with a request to `owner`, in steps that do without control
/// messages: no more than a request has room for, since the end of the step frees the rest.
std::vector<RequestId> CallRouter::take_releases(PpRank owner) {
  constexpr std::ptrdiff_t kMost = 1024;
  if (!core_.step->keeps_to_record || owner.index() >= outputs_to_release_.size()) return {};
  auto& all = outputs_to_release_[owner.index()];
  if (std::ssize(all) <= kMost) return std::exchange(all, {});
  std::vector<RequestId> last(all.end() - kMost, all.end());
  all.resize(all.size() - last.size());
  return last;
}

void CallRouter::end_step() {
  for (auto& requests : outputs_to_release_) requests.clear();
  flush_releases();
}

void CallRouter::flush_releases() {
  for (std::size_t owner = 0; owner < outputs_to_release_.size(); ++owner) {
    if (outputs_to_release_[owner].empty() || core_.step->keeps_to_record) continue;
    ReleaseOutputs message{std::exchange(outputs_to_release_[owner], {})};
    if (!core_.in_good_step()) continue;
    core_.port.send(PpRank(static_cast<int>(owner)), Message(std::move(message)));
  }
  for (const auto& [owner, record] : std::exchange(to_release_, {})) {
    if (core_.in_good_step()) core_.port.send(owner, ReleaseRecord{record});
  }
}

}  // namespace smp::server
