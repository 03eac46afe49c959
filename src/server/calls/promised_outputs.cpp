// server/calls/promised_outputs.cpp: the answer is used on the caller's fiber, when it waits for it
// at last.
#include "server/calls/promised_outputs.h"

#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "server/promises/output_fetch.h"
#include "server/protocol/remote_exception.h"
#include "server/running/inside_node.h"

namespace smp::server {

OutputUse::OutputUse(std::shared_ptr<PromisedOutputs> outputs) : outputs_(std::move(outputs)) {
  outputs_->hold();
}
OutputUse::~OutputUse() {
  if (outputs_ != nullptr) outputs_->let_go();
}

bool OutputWays::add(std::uint32_t output, PpRank to) {
  const auto way_among = [&](std::vector<SendAhead>& ways) {
    return std::find_if(ways.begin(), ways.end(),
                        [&](const SendAhead& way) { return way.output == output && way.to == to; });
  };
  if (const auto way = way_among(went_); way != went_.end()) {
    ++way->times;
  } else {
    went_.push_back({output, to});
  }
  // Requests beyond those of the steps before ask for it.
  const auto ahead = way_among(ahead_);
  if (ahead == ahead_.end()) return false;
  if (--ahead->times == 0) ahead_.erase(ahead);
  return true;
}

void OutputWays::end() {
  if (recorded_ != nullptr) recorded_->went(std::move(went_));
}

PromisedOutputs::PromisedOutputs(std::shared_ptr<OutgoingCall> call, ForwardRequest& request,
                                 ExpectedResult& expected, at::ArrayRef<at::Tensor> own,
                                 OutputUses&& uses, RecordedFlow::Call* recorded)
    : call_(std::move(call)),
      expected_(expected),
      ways_(request.ahead, recorded),
      arguments_(own),
      uses_(std::move(uses)),
      outputs_(expected.outputs.size()),
      num_live_(outputs_.size()),
      number_(ExecutionScope::current()->work().calls()),
      from_body_(ExecutionScope::current()->calls_from_body()),
      keeping_(request.withhold_outputs ? Keeping::kWithheld
               : request.keep_outputs   ? Keeping::kKept
                                        : Keeping::kNot) {
  if (std::any_of(expected.outputs.begin(), expected.outputs.end(),
                  [](const auto& output) { return output.requires_grad; })) {
    node_ = make_node<RemoteCall>(call_);
    node_->set_next_edges(torch::autograd::collect_next_edges(own));
  }
  request.request = call_->ask(answer_);
}

Packet PromisedOutputs::promises(const std::shared_ptr<PromisedOutputs>& outputs) {
  const auto& expected = outputs->expected_;
  Packet packet{expected.bytes, {}};
  for (std::uint32_t i = 0; i < expected.outputs.size(); ++i) {
    const auto& [dtype, device, requires_grad] = expected.outputs[i];
    auto tensor = promised_tensor(outputs, i, dtype, device);
    if (requires_grad) torch::autograd::impl::set_gradient_edge(tensor, {outputs->node_, i});
    outputs->outputs_[i].promise.emplace(tensor.getIntrusivePtr());
    packet.tensors.push_back(std::move(tensor));
  }
  return packet;
}

bool PromisedOutputs::may_be_withheld() const noexcept {
  switch (call_->forward()) {
    case ForwardState::kPromised:
      return true;
    case ForwardState::kAnswered:
      return !answer_.response->withheld.empty();
    default:
      return outcome_ == Outcome::kWithheld;
  }
}

bool PromisedOutputs::passes_on() noexcept {
  const auto line = call_->line();
  if (line == nullptr) return false;  // and what it expected is gone with it
  expected_.passed_on = true;
  return keeping_ != Keeping::kNot && line->good_step(call_->facts().step) != nullptr &&
         may_be_withheld();
}

PromisedInput PromisedOutputs::pass_on(std::size_t index, PpRank consumer) {
  outputs_.at(index).passed_on = true;
  const auto& facts = call_->facts();
  PromisedInput input{0, {facts.owner, facts.request, static_cast<std::uint32_t>(index)}};
  if (consumer != facts.owner) input.ahead = ways_.add(input.source.output, consumer);
  return input;
}

// ---- values ------------------------------------------------------------------------------------

void PromisedOutputs::require_that_it_can_wait() const {
  SMP_REQUIRE(fiber::current_fiber() != nullptr && ExecutionScope::current() != nullptr,
              call_->facts().who(),
              ": a tensor that it has promised was used outside of a step, or on a thread of the "
              "program's own; call smp::wait(tensor) in the step first (smp/wait.h)");
  SMP_REQUIRE(!inside_node(), call_->facts().who(),
              ": a tensor that it has promised was used inside the backward of an autograd node, "
              "which cannot wait for it; call smp::wait(tensor) before (smp/wait.h)");
}

CallLine& PromisedOutputs::line_in_step() const {
  const auto line = call_->line();
  SMP_REQUIRE(line != nullptr && line->step(call_->facts().step) != nullptr, call_->facts().who(),
              ": a tensor that it has promised, and that has not come, was used after its step was "
              "over; do not keep what a failed step or a failed call leaves");
  return *line;
}

PromisedValues::Value PromisedOutputs::value(std::size_t index) {
  auto& output = outputs_.at(index);
  if (call_->forward() == ForwardState::kUsed && output.value.defined()) {
    if (need_ == Need::kNone) need_ = Need::kLater;  // though nobody had to wait for it
    return {output.value, outcome_ == Outcome::kLinked};
  }
  require_that_it_can_wait();
  auto& line = line_in_step();
  if (line.failures().empty_because_unwinding()) return {at::empty({0}), false};
  if (need_ == Need::kNone) {
    const bool has_worked = ExecutionScope::current()->work().has_worked_since(number_);
    need_ = has_worked ? Need::kLater : Need::kAtOnce;
  }
  const auto& facts = call_->facts();
  std::optional<OutputFetch> fetch;
  if (keeping_ == Keeping::kWithheld && may_be_withheld()) {
    fetch.emplace(line.core(), facts.owner, facts.request).ask(static_cast<std::uint32_t>(index));
  }
  await_end();
  if (has_failed(call_->forward())) throw_failure();
  settle();
  if (!output.value.defined()) {
    SMP_ASSERT(fetch.has_value(), facts.who(), ", output ", index);
    auto value =
        fetch->wait({"a promised output", facts.path, facts.owner_name.value(), facts.microbatch});
    if (!value.defined()) {
      if (line.failures().empty_because_unwinding()) return {at::empty({0}), false};
      SMP_ASSERT(false, facts.who(), ": output ", index, " did not come");
    }
    output.value = std::move(value);
  }
  return {output.value, outcome_ == Outcome::kLinked};
}

void PromisedOutputs::forget(std::size_t index) noexcept {
  auto& output = outputs_[index];
  if (!std::exchange(output.live, false)) return;
  output.value.reset();
  let_go();
}

void PromisedOutputs::let_go() noexcept {
  if (--num_live_ > 0) return;
  const auto line = call_->line();
  if (line == nullptr) return;
  expected_.fetched = need_ != Need::kNone;
  expected_.at_once = need_ == Need::kAtOnce;
  ways_.end();
  const auto& facts = call_->facts();
  if (keeping_ != Keeping::kNot) line->release_outputs(facts.owner, facts.step, facts.request);
}

// ---- the end of the call -----------------------------------------------------------------------

bool PromisedOutputs::has_answered() const noexcept {
  const auto forward = call_->forward();
  return forward == ForwardState::kAnswered || forward == ForwardState::kUsed;
}

void PromisedOutputs::await_end() {
  auto& line = line_in_step();
  call_->wait();
  if (call_->forward() == ForwardState::kAborted) line.failures().throw_aborted();
}

void PromisedOutputs::finish() {
  await_end();
  if (!has_failed(call_->forward())) return settle();
  if (call_->note_thrown() && !answer_.failure->of_input) {  // else its cause is an earlier call's
    throw_remote(*answer_.failure);
  }
}

/// In one process an earlier call that failed would have been the end.
void PromisedOutputs::throw_failure() {
  ExecutionScope::current()->outgoing().finish();
  call_->note_thrown();
  throw_remote(*answer_.failure);
}

void PromisedOutputs::fetch_all() {
  for (auto& output : outputs_) {
    if (!output.live || !output.promise || has_failed(call_->forward())) continue;
    auto promise = output.promise->lock();
    if (promise != nullptr) fetch(at::Tensor(std::move(promise)));
  }
}

/// Each holds, by its arguments, the call before it.
void PromisedOutputs::abandon() noexcept {
  arguments_ = {};
  uses_.clear();
  call_->abandon();
}

/// The program may catch what this throws, and its results would lack their history.
void PromisedOutputs::settle() {
  if (call_->forward() == ForwardState::kUsed) return;
  call_->use(answer_.response->record);
  try {
    use_answer();
  } catch (...) {
    line_in_step().failures().fail_step(std::current_exception());
    throw;
  }
}

void PromisedOutputs::use_answer() {
  auto response = *std::exchange(answer_.response, std::nullopt);
  const auto& facts = call_->facts();
  if (response.settings) take_settings(*response.settings);
  if (facts.record) line_in_step().note_record(facts.step, facts.microbatch);
  outcome_ =
      smp::server::use_answer({call_, expected_, arguments_, outputs_, node_}, std::move(response));
  arguments_ = {};
  uses_.clear();
  node_.reset();
}

void PromisedOutputs::take_settings(const Settings& changed) {
  auto& line = line_in_step();
  auto& module = line.core().scopes.modules.module(call_->facts().module);
  line.take_settings(module, changed);
  if (from_body_) ExecutionScope::current()->settings().body_call_ends(module);
}

}  // namespace smp::server
