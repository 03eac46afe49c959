// server/step/waiting_requests.cpp: one row for each execution that calls.
#include "server/step/waiting_requests.h"

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
  const AheadFor to{name.request, input.index};
  if (ahead_.contains(source)) return give_ahead(source, to);
  missing_ahead_[source].push_back(to);
}

void WaitingRequests::take_ahead(PassedOn&& message) {
  const AheadName source{{message.caller, message.consumer}, message.index};
  message.shared = message.times > 1;
  ahead_.insert_or_assign(source, std::move(message));
  auto missing = missing_ahead_.extract(source);
  if (missing.empty()) return;
  for (const auto& to : missing.mapped()) {
    if (rows_.empty()) return;  // the step has failed
    give_ahead(source, to);
  }
}

void WaitingRequests::give_ahead(const AheadName& name, const AheadFor& to) {
  const auto came = ahead_.find(name);
  SMP_ASSERT(came != ahead_.end(), "output ", name.second, " went ahead for fewer requests");
  const bool last = --came->second.times == 0;
  auto message = last ? std::move(came->second) : came->second;
  if (last) ahead_.erase(came);
  message.consumer = to.consumer;
  message.index = to.index;
  message.ahead = false;
  take(std::move(message));
}

void WaitingRequests::take(PassedOn&& message) {
  if (message.ahead) return take_ahead(std::move(message));
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
    input.shared = message.shared;
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
