// server/waiting_requests.cpp: one row for each execution that calls.
#include "server/waiting_requests.h"

#include "base/check.h"

namespace smp::server {

WaitingRequests::Row WaitingRequests::row_of(PpRank source, const ForwardRequest& request) {
  return {source.value(), request.row};
}

void WaitingRequests::add(Forward&& request, PpRank self) {
  const auto row = row_of(request.source, request.request);
  const auto place = request.request.place;
  request.row = row;
  const RequestName name{request.source, request.request.request};
  const auto promised = request.request.promised;
  rows_[row].waiting.insert_or_assign(place, Waiting{std::move(request), promised.size(), false});
  if (promised.empty()) return start_next(row);
  missing_[name] = {row, place};
  auto early = too_early_.extract(name);
  if (!early.empty()) {
    for (auto& message : early.mapped()) take(std::move(message));
  }
  // The answer may come at once, and start requests.
  for (const auto& input : promised) {
    if (input.ahead) {
      await_ahead(name, input);
    } else if (input.source.owner == self) {
      ask_(name.caller,
           {input.source.request, input.source.output, self, name.request, input.index});
    }
  }
}

void WaitingRequests::await_ahead(const RequestName& name, const PromisedInput& input) {
  const AheadName source{{name.caller, input.source.request}, input.source.output};
  missing_ahead_[source] = {name.request, input.index};
  if (auto came = ahead_.extract(source)) take(std::move(came.mapped()));
}

/// Whether it is known by now which request `message` is for, which it names then.
bool WaitingRequests::take_ahead(PassedOn& message) {
  const AheadName source{{message.caller, message.consumer}, message.index};
  const auto to = missing_ahead_.extract(source);
  if (to.empty()) {
    ahead_.insert_or_assign(source, std::move(message));
    return false;
  }
  message.consumer = to.mapped().consumer;
  message.index = to.mapped().index;
  message.ahead = false;
  return true;
}

void WaitingRequests::take(PassedOn&& message) {
  if (message.ahead && !take_ahead(message)) return;
  const RequestName name{message.caller, message.consumer};
  const auto found = missing_.find(name);
  if (found == missing_.end()) {
    too_early_[name].push_back(std::move(message));
    return;
  }
  const auto [row, place] = found->second;
  auto& waiting = rows_.at(row).waiting.at(place);
  put(waiting, std::move(message));
  if (waiting.missing > 0) return;
  missing_.erase(found);
  start_next(row);
}

void WaitingRequests::put(Waiting& waiting, PassedOn&& message) {
  waiting.failed |= message.failed;
  --waiting.missing;
  for (auto& input : waiting.forward.request.promised) {
    if (input.index != message.index) continue;
    input.tensors = std::move(message.tensors);
    input.forms = std::move(message.forms);
    input.unusual = message.unusual;
    return;
  }
  SMP_ASSERT(false, "tensor ", message.index, " was not promised");
}

void WaitingRequests::ended(Row row) {
  if (row == kNoRow) return;
  rows_.at(row).runs = false;
  start_next(row);
}

// One that fails at once ends at once: who starts it goes on with the next, so that a row of many
// does not take a stack of many frames.
void WaitingRequests::start_next(Row row) {
  if (rows_.at(row).starting) return;
  while (auto next = take_next(row)) {
    rows_.at(row).starting = true;
    start_(std::move(next->forward), next->failed);
    const auto state = rows_.find(row);
    if (state == rows_.end()) return;  // the step has failed
    state->second.starting = false;
  }
}

std::optional<WaitingRequests::Waiting> WaitingRequests::take_next(Row row) {
  auto& state = rows_.at(row);
  const auto next = state.waiting.find(state.next);
  if (state.runs || next == state.waiting.end() || next->second.missing > 0) return std::nullopt;
  auto waiting = std::move(next->second);
  state.waiting.erase(next);
  ++state.next;
  state.runs = true;
  return waiting;
}

std::size_t WaitingRequests::size() const noexcept {
  std::size_t size = too_early_.size() + ahead_.size();
  for (const auto& [row, state] : rows_) size += state.waiting.size();
  return size;
}

std::vector<std::pair<std::int32_t, ModuleId>> WaitingRequests::waiting_for_inputs() const {
  std::vector<std::pair<std::int32_t, ModuleId>> found;
  for (const auto& [row, state] : rows_) {
    for (const auto& [place, waiting] : state.waiting) {
      if (waiting.missing == 0) continue;
      found.emplace_back(waiting.forward.request.microbatch, waiting.forward.request.module);
    }
  }
  return found;
}

void WaitingRequests::clear() noexcept {
  rows_.clear();
  missing_.clear();
  too_early_.clear();
  ahead_.clear();
  missing_ahead_.clear();
}

}  // namespace smp::server
