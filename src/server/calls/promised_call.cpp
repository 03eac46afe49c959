// server/calls/promised_call.cpp: the answer is used on the caller's fiber, when it waits for it at
// last.
#include "server/calls/promised_call.h"

#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "module/node_pointer.h"
#include "server/graph/node_hooks.h"
#include "server/promises/output_fetch.h"
#include "server/protocol/remote_exception.h"
#include "server/running/inside_node.h"
#include "server/values/hooked_arguments.h"
#include "server/values/link_follower.h"
#include "server/values/output_links.h"
#include "server/values/output_shapes.h"
#include "server/values/tensor_forms.h"
#include "server/values/tensor_memory.h"

namespace smp::server {

namespace {

constexpr const char* kNotKnown =
    ", unlike in earlier calls, and was passed on to another remote module before that was known. "
    "Call smp::wait() on it (smp/wait.h), or set promised_outputs to false";

}  // namespace

/// Keeps an event in `all` while it lives. A wait may be refused by an exception, so the destructor
/// removes it.
class PromisedCall::Waiter {
 public:
  explicit Waiter(std::vector<fiber::Event*>& all) : all_(all) { all_.push_back(&event_); }
  ~Waiter() { all_.erase(std::find(all_.begin(), all_.end(), &event_)); }
  Waiter(const Waiter&) = delete;
  Waiter& operator=(const Waiter&) = delete;
  fiber::Event& event() const { return event_; }

 private:
  std::vector<fiber::Event*>& all_;
  mutable fiber::Event event_;
};

PromisedCall::PromisedCall(CallRouter& router, PpRank owner, ForwardRequest& request,
                           ExpectedResult& expected, at::ArrayRef<at::Tensor> own,
                           OutputUses&& uses, RecordedFlow::Call* recorded)
    : router_(router.self_),
      owner_(owner),
      module_(request.module),
      path_(router.core_.scopes.modules.at(module_).lasting_path),
      owner_name_(router.core_.port.name(owner)),
      microbatch_(request.microbatch),
      step_(router.core_.step->number),
      settings_(request.settings),
      withheld_(request.withhold_outputs),
      kept_(request.keep_outputs),
      number_(ExecutionScope::current()->num_calls()),
      from_body_(ExecutionScope::current()->calls_from_body()),
      expected_(expected),
      recorded_(recorded),
      ahead_(request.ahead),
      arguments_(own.begin(), own.end()),
      uses_(std::move(uses)),
      outputs_(expected.outputs.size()),
      num_live_(expected.outputs.size()) {
  for (const auto& tensor : arguments_) versions_.push_back(version_of(tensor));
  const bool any = std::any_of(expected.outputs.begin(), expected.outputs.end(),
                               [](const auto& output) { return output.requires_grad; });
  if (!any) return;
  node_ = make_node<RemoteCall>(router, owner, RecordId{}, module_, settings_);
  node_->set_next_edges(torch::autograd::collect_next_edges(own));
}

PromisedCall::~PromisedCall() { abandon(); }

void PromisedCall::set_request(RequestId request) noexcept {
  request_ = request;
  if (node_ != nullptr) node_->promise(request, outputs_.size());
}

Packet PromisedCall::promises() {
  Packet packet{expected_.bytes, {}};
  for (std::uint32_t i = 0; i < outputs_.size(); ++i) {
    const auto& expected = expected_.outputs[i];
    auto tensor = promised_tensor(shared_from_this(), i, expected.dtype, expected.device);
    if (expected.requires_grad) torch::autograd::impl::set_gradient_edge(tensor, {node_, i});
    outputs_[i].promise.emplace(tensor.getIntrusivePtr());
    packet.tensors.push_back(std::move(tensor));
  }
  return packet;
}

bool PromisedCall::passes_on() noexcept {
  const auto router = router_.lock();
  if (router == nullptr) return false;  // and what it expected is gone with it
  const bool in_step = router->core_.in_good_step() && router->core_.step->number == step_;
  expected_.passed_on = true;
  if (!kept_ || !in_step || failure_ || aborted_ || linked_) return false;
  return settled_ ? not_sent_ : !answer_ || !answer_->withheld.empty();
}

PromisedInput PromisedCall::pass_on(std::size_t index, PpRank consumer) {
  outputs_.at(index).passed_on = true;
  const auto output = static_cast<std::uint32_t>(index);
  PromisedInput input{0, {owner_, request_, output}};
  if (consumer == owner_) return input;
  const auto way_among = [&](std::vector<SendAhead>& ways) {
    return std::find_if(ways.begin(), ways.end(), [&](const SendAhead& way) {
      return way.output == output && way.to == consumer;
    });
  };
  if (const auto way = way_among(went_); way != went_.end()) {
    ++way->times;
  } else {
    went_.push_back({output, consumer});
  }
  // Requests beyond those of the steps before ask for it.
  const auto ahead = way_among(ahead_);
  input.ahead = ahead != ahead_.end();
  if (input.ahead && --ahead->times == 0) ahead_.erase(ahead);
  return input;
}

// ---- values ------------------------------------------------------------------------------------

std::string PromisedCall::who() const {
  return base::concat("module '", path_, "' on rank ", owner_name_, ", microbatch ", microbatch_);
}

void PromisedCall::require_that_it_can_wait() const {
  SMP_REQUIRE(fiber::current_fiber() != nullptr && ExecutionScope::current() != nullptr, who(),
              ": a tensor that it has promised was used outside of a step, or on a thread of the "
              "program's own; call smp::wait(tensor) in the step first (smp/wait.h)");
  SMP_REQUIRE(!inside_node(), who(),
              ": a tensor that it has promised was used inside the backward of an autograd node, "
              "which cannot wait for it; call smp::wait(tensor) before (smp/wait.h)");
}

CallRouter& PromisedCall::router_in_step() const {
  const auto router = router_.lock();
  SMP_REQUIRE(
      router != nullptr && router->core_.step != nullptr && router->core_.step->number == step_,
      who(),
      ": a tensor that it has promised, and that has not come, was used after its step was over; "
      "do "
      "not keep what a failed step or a failed call leaves");
  return *router;
}

PromisedValues::Value PromisedCall::value(std::size_t index) {
  auto& output = outputs_.at(index);
  if (settled_ && output.value.defined()) {
    fetched_ = true;  // it was needed, though nobody had to wait for it
    return {output.value, linked_};
  }
  require_that_it_can_wait();
  auto& router = router_in_step();
  if (router.failures_.empty_because_unwinding()) return {at::empty({0}), false};
  const auto alive = shared_from_this();
  if (!std::exchange(fetched_, true)) {
    at_once_ = !ExecutionScope::current()->has_worked_since(number_);
  }
  std::optional<OutputFetch> fetch;
  if (withheld_ && (!answer_ || !answer_->withheld.empty() || not_sent_) && !failure_) {
    fetch.emplace(router.core_, owner_, request_).ask(static_cast<std::uint32_t>(index));
  }
  await_end();
  if (failure_) throw_failure();
  settle();
  if (!output.value.defined()) {
    SMP_ASSERT(fetch.has_value(), who(), ", output ", index);
    auto value = fetch->wait({"a promised output", path_, owner_name_.value(), microbatch_});
    if (!value.defined()) {
      if (router.failures_.empty_because_unwinding()) return {at::empty({0}), false};
      SMP_ASSERT(false, who(), ": output ", index, " did not come");
    }
    output.value = std::move(value);
  }
  return {output.value, linked_};
}

void PromisedCall::forget(std::size_t index) noexcept {
  auto& output = outputs_[index];
  if (!std::exchange(output.live, false)) return;
  output.value.reset();
  let_go();
}

void PromisedCall::let_go() noexcept {
  if (--num_live_ > 0) return;
  const auto router = router_.lock();
  if (router == nullptr) return;
  expected_.fetched = fetched_;
  expected_.at_once = at_once_;
  if (recorded_ != nullptr) recorded_->went(std::move(went_));
  if (kept_) router->release_outputs(owner_, step_, request_);
}

OutputUse::OutputUse(std::shared_ptr<PromisedCall> call) : call_(std::move(call)) {
  ++call_->num_live_;
}
OutputUse::~OutputUse() {
  if (call_ != nullptr) call_->let_go();
}

// ---- the end of the call -----------------------------------------------------------------------

void PromisedCall::on_forward(ForwardResponse&& response) noexcept {
  answer_ = std::move(response);
  end();
}
void PromisedCall::on_backward(BackwardResponse&&) noexcept {
  failure_ = Failure{owner_, "a backward answer to a forward request"};
  end();
}
void PromisedCall::on_error(Failure&& failure) noexcept {
  failure_ = std::move(failure);
  end();
}
void PromisedCall::on_abort() noexcept {
  aborted_ = true;
  end();
}

void PromisedCall::end() noexcept {
  for (auto* event : waiters_) event->signal();
}

void PromisedCall::await_end() {
  auto& router = router_in_step();
  while (!ended()) {
    const Waiter waiter(waiters_);
    await_answer(waiter.event(), {"forward", path_, owner_name_.value(), microbatch_});
  }
  if (aborted_) router.failures_.throw_aborted();
}

void PromisedCall::finish() {
  const auto alive = shared_from_this();
  await_end();
  if (failure_) {
    // Its cause is an earlier call's.
    if (std::exchange(thrown_, true) || failure_->of_input) return;
    throw_remote(*failure_);
  }
  settle();
}

/// Throws what the call threw, unless an earlier call has failed: its exception is thrown first, as
/// in one process.
void PromisedCall::throw_failure() {
  ExecutionScope::current()->finish_calls();
  thrown_ = true;
  throw_remote(*failure_);
}

void PromisedCall::fetch_all() {
  for (auto& output : outputs_) {
    if (!output.live || !output.promise || failure_) continue;
    auto promise = output.promise->lock();
    if (promise != nullptr) fetch(at::Tensor(std::move(promise)));
  }
}

/// Releases the arguments, by which each call would keep the call before it alive.
void PromisedCall::forget_inputs() noexcept {
  arguments_.clear();
  uses_.clear();
}

void PromisedCall::abandon() noexcept {
  forget_inputs();
  if (ended()) return;
  aborted_ = true;
  const auto router = router_.lock();
  if (router == nullptr || router->core_.step == nullptr || router->core_.step->number != step_) {
    return;
  }
  router->core_.step->requests.take(request_);
}

// ---- the answer is used ------------------------------------------------------------------------

/// Uses the answer, once. If that throws, the step fails: the program may catch the exception, and
/// its results would lack their history.
void PromisedCall::settle() {
  if (std::exchange(settled_, true)) return;
  try {
    use_answer();
  } catch (...) {
    router_in_step().failures_.fail_step(std::current_exception());
    throw;
  }
}

void PromisedCall::use_answer() {
  auto answer = std::move(*answer_);
  answer_.emplace();
  TensorFlags requires_grad;
  auto outputs = outputs_of(answer, requires_grad);
  if (!is_as_expected(answer, outputs, requires_grad)) expected_.refused = true;
  linked_ = !answer.links.empty();
  for (std::size_t i = 0; i < outputs_.size(); ++i) {
    const bool differs =
        i < requires_grad.size() && requires_grad[i] && !expected_.outputs[i].requires_grad;
    if (differs) require_not_passed_on(i);
  }
  auto& router = router_in_step();
  if (answer.settings) {
    auto& module = router.core_.scopes.modules.module(module_);
    router.take_settings(module, *answer.settings);
    if (from_body_) ExecutionScope::current()->body_call_ends(module);
  }
  if (answer.record) router.note_record(step_, microbatch_);
  give_history(answer, outputs, requires_grad);
  not_sent_ = !answer.withheld.empty();
  for (std::size_t i = 0; i < outputs_.size(); ++i) {
    auto& output = outputs_[i];
    if (!output.live || not_sent_) continue;
    output.value = linked_ ? fetched(outputs[i]) : std::move(outputs[i]);
    SMP_REQUIRE_AS(
        UnsupportedError, !output.value.defined() || can_be_guarded(output.value), who(),
        ": tensor ", i, " of its result is ", output.value.layout(),
        ", and was dense in earlier calls like this one; call smp::wait() on its results "
        "(smp/wait.h), or set promised_outputs to false");
    SMP_REQUIRE(output.value.defined(), who(), ": tensor ", i,
                " of its result is undefined, and was defined in earlier calls like this one; call "
                "smp::wait() on its results (smp/wait.h), or set promised_outputs to false");
  }
  forget_inputs();
  node_.reset();
}

std::vector<at::Tensor> PromisedCall::outputs_of(ForwardResponse& answer,
                                                 TensorFlags& requires_grad) {
  if (!answer.withheld.empty()) return shapes_of(answer.withheld, requires_grad);
  auto outputs = std::move(answer.result.tensors);
  restore_forms(answer.forms, outputs);
  requires_grad = answer.requires_grad;
  return outputs;
}

bool PromisedCall::is_as_expected(const ForwardResponse& answer,
                                  const std::vector<at::Tensor>& outputs,
                                  const TensorFlags& requires_grad) const {
  if (!answer.links.empty() || !answer.hooked.empty() || answer.settings) return false;
  if (answer.result.bytes != expected_.bytes || outputs.size() != outputs_.size()) return false;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const auto& expected = expected_.outputs[i];
    if (!outputs[i].defined() || outputs[i].scalar_type() != expected.dtype) return false;
    if (requires_grad[i] != expected.requires_grad) return false;
  }
  return true;
}

/// Returns the outputs that are arguments; empty if there are none, or if any output is linked in
/// another way.
std::vector<RemoteCall::Passing> PromisedCall::arguments_among(const ForwardResponse& answer,
                                                               std::size_t num_outputs) const {
  std::vector<RemoteCall::Passing> passing;
  if (answer.links.empty()) return passing;
  const auto told = OutputLinks::from_note(answer.links, num_outputs, arguments_.size());
  if (!told.changes.empty() || told.num_outputs != num_outputs) return passing;
  for (const auto& link : told.links) {
    if (link.kind != OutputLink::Kind::kSame || link.source != OutputLink::Source::kArgument) {
      return {};
    }
    passing.push_back(
        {static_cast<std::uint32_t>(link.output), static_cast<std::uint32_t>(link.index)});
  }
  return passing;
}

void PromisedCall::require_not_passed_on(std::size_t output) const {
  SMP_REQUIRE_AS(UnsupportedError, !outputs_[output].passed_on, who(), ": tensor ", output,
                 " of its result requires a gradient", kNotKnown);
}

void PromisedCall::give_history(ForwardResponse& answer, std::vector<at::Tensor>& outputs,
                                const TensorFlags& requires_grad) {
  auto& router = router_in_step();
  const auto& entry = router.core_.scopes.modules.at(module_);
  const auto hooked = watch_hooked_arguments(answer.hooked, arguments_, entry.lasting_path);
  if (answer.record && node_ == nullptr) {
    node_ = make_node<RemoteCall>(router, owner_, answer.record, module_, settings_);
    node_->set_next_edges(torch::autograd::collect_next_edges(arguments_));
  }
  if (linked_) require_unchanged_arguments(answer, outputs.size());
  const auto passing = arguments_among(answer, outputs.size());
  if (linked_) require_that_consumers_are_right(passing);
  if (linked_) require_no_hooks(answer, outputs.size());
  if (node_ != nullptr) {
    node_->keep_gradients(hooked);
    node_->set_inner(std::move(answer.inner));
    node_->set_answer(answer.record, passing);
  }
  if (node_ != nullptr && !passing.empty()) {
    give_history_to_arguments(passing, outputs, requires_grad);
  } else if (node_ != nullptr || linked_) {
    follow_links(answer.links, outputs, arguments_, requires_grad, node_, entry.path.c_str());
  }
}

/// Throws UnsupportedError if the call has changed an argument in place: its caller may have read
/// or written the argument since, even if it waits for the result now.
void PromisedCall::require_unchanged_arguments(const ForwardResponse& answer,
                                               std::size_t num_outputs) const {
  const auto told = OutputLinks::from_note(answer.links, num_outputs, arguments_.size());
  SMP_REQUIRE_AS(
      UnsupportedError, told.changes.empty(), who(), ": it has changed its argument ",
      told.changes.front().argument,
      " in place, which it did not in earlier calls, so its caller may have gone on with "
      "the old values. Calls like it are awaited from now on; to have all awaited from "
      "the first step on, set promised_outputs to false");
}

/// Throws UnsupportedError if outputs were passed on as if they were not linked and that was wrong.
/// An output that is an argument can still pass its gradient on to it; one that shares memory in
/// another way cannot, nor one whose argument the caller has written meanwhile.
void PromisedCall::require_that_consumers_are_right(
    const std::vector<RemoteCall::Passing>& passing) const {
  if (std::none_of(outputs_.begin(), outputs_.end(),
                   [](const Output& output) { return output.passed_on; })) {
    return;
  }
  SMP_REQUIRE_AS(UnsupportedError, !passing.empty(), who(),
                 ": its result shares memory with its arguments or with itself", kNotKnown);
  for (std::size_t i = 0; i < arguments_.size(); ++i) {
    const bool written = version_of(arguments_[i]) != versions_[i];
    SMP_REQUIRE_AS(UnsupportedError, !written, who(), ": its result is its argument ", i,
                   ", which was changed in place since", kNotKnown);
  }
}

/// Throws UnsupportedError if a linked output has a hook or retains its gradient: the hook would
/// see the gradient of the promise, in one process that of the tensor to which it is linked. An
/// output with a gradient of its own keeps its place in the node.
void PromisedCall::require_no_hooks(const ForwardResponse& answer, std::size_t num_outputs) const {
  const auto told = OutputLinks::from_note(answer.links, num_outputs, arguments_.size());
  for (const auto& link : told.links) {
    const auto& promise = outputs_.at(link.output).promise;
    auto impl = promise && !link.passes_record() ? promise->lock() : nullptr;
    if (impl == nullptr) continue;
    const at::Tensor tensor(std::move(impl));
    SMP_REQUIRE_AS(UnsupportedError, !is_hooked(tensor), who(), ": tensor ", link.output,
                   " of its result has a hook or retains its gradient, and shares memory with its "
                   "arguments or with another tensor of its result, unlike in earlier calls. Call "
                   "smp::wait() on it before (smp/wait.h), or set promised_outputs to false");
  }
}

void PromisedCall::give_history_to_arguments(const std::vector<RemoteCall::Passing>& passing,
                                             std::vector<at::Tensor>& outputs,
                                             const TensorFlags& requires_grad) {
  for (const auto& [output, argument] : passing) outputs[output] = arguments_[argument];
  for (std::uint32_t i = 0; i < outputs.size(); ++i) {
    const bool is_argument = std::any_of(passing.begin(), passing.end(),
                                         [i](const auto& own) { return own.output == i; });
    if (is_argument && outputs[i].defined()) {
      node_->add_input_metadata(fetched(outputs[i]));
    } else if (requires_grad[i]) {
      torch::autograd::set_history(outputs[i], node_);
    } else {
      add_input_without_history(*node_, outputs[i]);
    }
  }
}

}  // namespace smp::server
