// server/calls/outgoing_call.cpp: answers move it on, and wake who waits.
#include "server/calls/outgoing_call.h"

#include <algorithm>
#include <utility>

#include "base/memory/recycling_allocator.h"
#include "server/protocol/remote_exception.h"
#include "server/running/turn_taker.h"

namespace smp::server {
namespace {

/// An event among `all` as long as it lives: waiting may be refused, by an exception.
class Waiter {
 public:
  explicit Waiter(CallAnswer& answer) : all_(answer.waiters) { all_.push_back(&event); }
  ~Waiter() { all_.erase(std::find(all_.begin(), all_.end(), &event)); }
  Waiter(const Waiter&) = delete;
  Waiter& operator=(const Waiter&) = delete;

  fiber::Event event;

 private:
  c10::SmallVectorImpl<fiber::Event*>& all_;
};

}  // namespace

std::string CallFacts::who() const {
  return base::concat("module '", path, "' on rank ", owner_name, ", microbatch ", microbatch);
}

std::shared_ptr<OutgoingCall> OutgoingCall::make(const std::shared_ptr<CallLine>& line,
                                                 PpRank owner, const ForwardRequest& request,
                                                 ForwardState first, std::size_t num_results) {
  const auto& core = line->core();
  CallFacts facts{owner,
                  core.port.name(owner),
                  request.module,
                  request.microbatch,
                  core.step->number,
                  core.scopes.modules.at(request.module).lasting_path,
                  request.settings,
                  static_cast<std::uint32_t>(num_results)};
  return std::allocate_shared<OutgoingCall>(base::RecyclingAllocator<OutgoingCall>(), line,
                                            std::move(facts), first);
}

OutgoingCall::OutgoingCall(const std::shared_ptr<CallLine>& line, CallFacts&& facts,
                           ForwardState first)
    : line_(line), facts_(std::move(facts)), forward_(first) {}

/// nullptr: another one runs, or none.
StepState* OutgoingCall::step() const noexcept {
  const auto line = line_.lock();
  return line == nullptr ? nullptr : line->step(facts_.step);
}

OutgoingCall::~OutgoingCall() {
  abandon();
  drop_gradient_graph();
  if (auto* const step = this->step()) step->requests.take(pass_.request);
}

// ---- forward -----------------------------------------------------------------------------------

RequestId OutgoingCall::ask(CallAnswer& answer) {
  answer_ = &answer;
  return facts_.request = line_.lock()->core().step->requests.add(&forward_target_);
}

void OutgoingCall::wait() {
  while (!has_ended(forward_)) {
    Waiter waiter(*answer_);
    await_answer(waiter.event,
                 {"forward", facts_.path, facts_.owner_name.value(), facts_.microbatch});
  }
}

bool OutgoingCall::note_thrown() {
  if (forward_ == ForwardState::kThrown) return false;
  forward_.become(ForwardState::kThrown);
  return true;
}

void OutgoingCall::use(RecordId record, const Settings* changed) {
  forward_.become(ForwardState::kUsed);
  facts_.record = record;
  if (changed != nullptr) facts_.settings = *changed;
}

void OutgoingCall::abandon() noexcept {
  if (has_ended(forward_)) return;
  forward_.become(ForwardState::kAborted);
  if (auto* const step = this->step()) step->requests.take(facts_.request);
}

// ---- backward ----------------------------------------------------------------------------------

bool OutgoingCall::begun_early() const noexcept {
  const bool begun = backward_ == BackwardState::kAsked || backward_ == BackwardState::kAnswered ||
                     backward_ == BackwardState::kNotBegun;
  return begun && !pass_.done;
}

StepState& OutgoingCall::require_may_join() const {
  auto* const step = this->step();
  const auto who = [this] { return base::concat(facts_.path, ", microbatch ", facts_.microbatch); };
  SMP_REQUIRE(step != nullptr, "backward of remote module ", who(),
              ": its step is over; call model.backward() inside the body of smp::step");
  SMP_REQUIRE(backward_ == BackwardState::kNone || backward_ == BackwardState::kReleased,
              "backward of remote module ", who(),
              ": two backward passes run through it at the same time");
  SMP_REQUIRE(backward_ == BackwardState::kNone,
              "Trying to backward through the graph a second time: that of remote module '",
              facts_.path, "', microbatch ", facts_.microbatch,
              ", was freed by the first backward; keep it with retain_graph");
  return *step;
}

/// The name of the request is known before any is sent: others send gradients to it.
void OutgoingCall::join(const BackwardOptions& options, Completion done, fiber::Event* on_answer) {
  if (begun_early()) {
    pass_.done = std::move(done);
    if (backward_ != BackwardState::kAsked) deliver();
    return;
  }
  auto& step = require_may_join();
  backward_.become(BackwardState::kJoined);
  pass_ = {{}, std::move(done), on_answer, options.keep_graph};
  notes_.routed = {};
  notes_.left_rest = false;
  if (step.failed()) return backward_target_.on_abort();
  if (!facts_.record && !is_open(forward_)) {
    return end_backward(BackwardState::kAnswered, {}, nullptr);
  }
  pass_.request = step.requests.add(&backward_target_);
}

void OutgoingCall::ask_backward(BackwardRequest&& request) {
  const auto line = line_.lock();
  request.request = pass_.request;
  request.record = facts_.record;
  request.microbatch = facts_.microbatch;
  const auto& identity = ExecutionScope::current()->identity();
  request.after_first_backward = identity.after_first_backward;
  // What a hook of a backward pass differentiates comes after the forward.
  if (request.create_graph && identity.phase == schedule::Phase::kBackward) {
    request.after_first_backward = true;
  }
  request.keep_graph = pass_.keeps_record;
  request.settings = line->changed_settings(facts_.module, facts_.settings);
  line->request_backward(facts_.owner, std::move(request));
  // If the channel has failed, the step has, and this has ended.
  if (backward_ == BackwardState::kJoined) backward_.become(BackwardState::kAsked);
}

/// One that was asked in vain, and has not said so yet, does not begin: no gradient comes to it.
void OutgoingCall::leave() noexcept {
  if (backward_ == BackwardState::kAsked) end_backward(BackwardState::kNotBegun, {}, nullptr);
  if (backward_ == BackwardState::kNone || backward_ == BackwardState::kReleased) return;
  if (auto* const step = this->step()) step->requests.take(pass_.request);
  backward_.become(BackwardState::kNone);
  pass_ = {};
  gradients_.clear();
  error_ = nullptr;
}

/// Its answer may be on its way.
void OutgoingCall::keep_record() noexcept {
  pass_.keeps_record = true;
  if (backward_ == BackwardState::kReleased) backward_.become(BackwardState::kNone);
  if (const auto line = line_.lock()) line->note_record(facts_.step, facts_.microbatch);
}

void OutgoingCall::drop() noexcept {
  const auto line = line_.lock();
  if (dropped_ || line == nullptr || !facts_.record) return;
  if (backward_ == BackwardState::kAsked) {
    dropped_ = line->adopt(shared_from_this());
    return;
  }
  if (backward_ == BackwardState::kAnswered) {  // early, and no pass came for it
    backward_.become(pass_.keeps_record ? BackwardState::kNone : BackwardState::kReleased);
  }
  if (backward_ == BackwardState::kNotBegun) backward_.become(BackwardState::kNone);
  if (backward_ != BackwardState::kNone) return;
  backward_.become(BackwardState::kReleased);
  line->release(facts_.owner, facts_.step, facts_.microbatch, facts_.record);
}

/// The answer has come to one that was dropped meanwhile.
void OutgoingCall::end_dropped() noexcept {
  dropped_ = false;
  const auto line = line_.lock();
  const auto self = line == nullptr ? nullptr : line->give_up(*this);
  drop();
}

// ---- graphs of gradients -----------------------------------------------------------------------

/// The owner has kept a record; somebody has to name it again, or to say that nobody will.
void OutgoingCall::keep_gradient_graph(BackwardResponse& response) {
  drop_gradient_graph();
  auto facts = facts_;
  facts.record = response.record;
  facts.num_results = 0;
  const auto line = line_.lock();
  if (line != nullptr) line->note_record(facts.step, facts.microbatch);
  gradient_graph_ = {std::make_shared<OutgoingCall>(line, std::move(facts), ForwardState::kUsed),
                     std::move(response.requires_grad), std::move(response.inner)};
}

/// No pass has taken it: it had ended by an exception.
void OutgoingCall::drop_gradient_graph() noexcept {
  if (const auto graph = take_gradient_graph(); graph.call != nullptr) graph.call->drop();
}

// ---- answers -----------------------------------------------------------------------------------

void OutgoingCall::Target::on_forward(ForwardResponse&& response) noexcept {
  if (is_backward()) return on_error({call.facts_.owner, "a forward answer to a backward request"});
  call.answer_->response = std::move(response);
  call.end_forward(ForwardState::kAnswered);
}

void OutgoingCall::Target::on_backward(BackwardResponse&& response) noexcept {
  if (!is_backward())
    return on_error({call.facts_.owner, "a backward answer to a forward request"});
  call.notes_ = {std::move(response.forms), std::move(response.routed), response.left_rest};
  if (response.record) call.keep_gradient_graph(response);
  call.end_backward(BackwardState::kAnswered, std::move(response.gradients), nullptr);
}

/// If the gradient of a backward failed, its pass gets that error from the call that should have
/// made it.
void OutgoingCall::Target::on_error(Failure&& failure) noexcept {
  if (!is_backward()) {
    call.answer_->failure = std::move(failure);
    return call.end_forward(ForwardState::kFailed);
  }
  if (!failure.of_input) {
    return call.end_backward(BackwardState::kAnswered, {}, remote_exception(failure));
  }
  call.end_backward(BackwardState::kNotBegun, {}, nullptr);
}

void OutgoingCall::Target::on_abort() noexcept {
  if (!is_backward()) return call.end_forward(ForwardState::kAborted);
  call.end_backward(BackwardState::kAnswered, {}, std::make_exception_ptr(StepAborted{}));
}

void OutgoingCall::end_forward(ForwardState state) noexcept {
  forward_.become(state);
  for (auto* const event : answer_->waiters) event->signal();
}

void OutgoingCall::end_backward(BackwardState state, variable_list&& gradients,
                                std::exception_ptr error) {
  backward_.become(state);
  const auto line = line_.lock();
  if (line != nullptr && state == BackwardState::kNotBegun) {
    line->backward_not_begun(facts_.owner, facts_.step, facts_.microbatch);
  }
  gradients_ = std::move(gradients);
  error_ = std::move(error);
  if (pass_.done) {
    deliver();
  } else if (pass_.on_answer != nullptr) {
    std::exchange(pass_.on_answer, nullptr)->signal();
  }
  if (dropped_) end_dropped();
}

/// To the pass. Another one begins anew.
void OutgoingCall::deliver() {
  const bool kept = backward_ == BackwardState::kNotBegun || pass_.keeps_record;
  backward_.become(kept ? BackwardState::kNone : BackwardState::kReleased);
  const auto done = std::exchange(pass_.done, {});
  done(std::exchange(gradients_, {}), std::exchange(error_, nullptr));
}

}  // namespace smp::server
