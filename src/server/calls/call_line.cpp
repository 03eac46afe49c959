// server/calls/call_line.cpp: see the header.
#include "server/calls/call_line.h"

#include <algorithm>
#include <utility>

#include "server/calls/outgoing_call.h"
#include "server/replay/step_closing.h"

namespace smp::server {

StepState* CallLine::step(std::int64_t number) const noexcept {
  return core_.step != nullptr && core_.step->number == number ? core_.step.get() : nullptr;
}

StepState* CallLine::good_step(std::int64_t number) const noexcept {
  return core_.in_good_step() ? step(number) : nullptr;
}

bool CallLine::may_pass_on() const {
  return core_.options.promised_outputs && core_.in_good_step() &&
         !core_.step->task.one_at_a_time && !core_.scopes.modules.any_in_order();
}

Settings CallLine::take_settings(RoutedBase& module, const Settings& changed) {
  auto& board = core_.scopes.settings;
  const auto& part = board.flags().subtree(module.smp_module());
  board.write(part, changed);
  return board.read(part);
}

std::optional<Settings> CallLine::changed_settings(ModuleId module, const Settings& since) const {
  auto& board = core_.scopes.settings;
  auto* const routed = core_.scopes.modules.find(module);
  if (routed == nullptr) return std::nullopt;
  const auto& part = board.flags().subtree(routed->smp_module());
  if (board.read(part) == since) return std::nullopt;
  return board.read_all(part);
}

// ---- answers -----------------------------------------------------------------------------------

std::optional<ResponseTarget*> CallLine::take_target(RequestId request) {
  core_.scopes.recorder.note(RequestKind::kReceived, core_.port.rank(), request);
  return core_.step->requests.take(request);
}

void CallLine::on_message(ForwardResponse&& response) {
  if (const auto target = take_target(response.request)) (*target)->on_forward(std::move(response));
}

void CallLine::on_message(BackwardResponse&& response) {
  if (const auto target = take_target(response.request)) {
    (*target)->on_backward(std::move(response));
  }
}

void CallLine::on_message(ErrorResponse&& response) {
  if (const auto target = take_target(response.request)) {
    (*target)->on_error(std::move(response.failure));
  }
}

void CallLine::on_message(PassedOn&& message) {
  if (const auto target = core_.step->requests.take(message.consumer)) {
    (*target)->on_passed_on(std::move(message));
  }
}

// ---- backward ----------------------------------------------------------------------------------

void CallLine::request_backward(PpRank owner, BackwardRequest&& request) {
  request.releases = take_releases(owner);
  core_.scopes.recorder.note(RequestKind::kAsked, core_.port.rank(), request.request);
  core_.port.send(owner, request);
  ++core_.counters.backward_requests;
  core_.counters.passed_on += request.promised.size();
  core_.step->closing->backward_asked(owner, request);
}

void CallLine::note_record(std::int64_t step, int microbatch) noexcept {
  if (auto* const at = good_step(step)) at->closing->record_kept(microbatch);
}

void CallLine::backward_not_begun(PpRank owner, std::int64_t step, int microbatch) noexcept {
  if (auto* const at = good_step(step)) at->closing->backward_not_begun(owner, microbatch);
}

bool CallLine::adopt(std::shared_ptr<OutgoingCall> call) {
  if (good_step(call->facts().step) == nullptr) return false;
  adopted_.push_back(std::move(call));
  return true;
}

std::shared_ptr<OutgoingCall> CallLine::give_up(const OutgoingCall& call) noexcept {
  const auto found = std::find_if(adopted_.begin(), adopted_.end(),
                                  [&](const auto& own) { return own.get() == &call; });
  if (found == adopted_.end()) return nullptr;
  auto given = std::move(*found);
  adopted_.erase(found);
  return given;
}

// ---- releases ----------------------------------------------------------------------------------

void CallLine::release(PpRank owner, std::int64_t step, int microbatch, RecordId record) {
  auto* const at = good_step(step);
  if (at == nullptr) return;
  at->closing->record_gone(microbatch);
  to_release_.push_back({owner, record});
  if (core_.port.receiving()) return core_.server.wake.signal();
  try {
    flush_releases();
  } catch (...) {  // a peer is lost, and this may be a destructor
    failures_.fail_step(std::current_exception());
  }
}

void CallLine::release_outputs(PpRank owner, std::int64_t step, RequestId request) noexcept {
  if (good_step(step) == nullptr) return;
  outputs_to_release_.resize(static_cast<std::size_t>(core_.port.size()));
  outputs_to_release_[owner.index()].push_back(request);
  if (!core_.step->keeps_to_record) core_.server.wake.signal();
}

/// In steps that do without control messages. No more than a request has room for: the step's end
/// frees them all.
std::vector<RequestId> CallLine::take_releases(PpRank owner) {
  constexpr std::ptrdiff_t kMost = 1024;
  if (!core_.step->keeps_to_record || owner.index() >= outputs_to_release_.size()) return {};
  auto& all = outputs_to_release_[owner.index()];
  if (std::ssize(all) <= kMost) return std::exchange(all, {});
  std::vector<RequestId> last(all.end() - kMost, all.end());
  all.resize(all.size() - last.size());
  return last;
}

void CallLine::end_step() {
  adopted_.clear();
  for (auto& requests : outputs_to_release_) requests.clear();
  flush_releases();
}

void CallLine::flush_releases() {
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
