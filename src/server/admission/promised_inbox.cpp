// server/admission/promised_inbox.cpp: counts what is missing.
#include "server/admission/promised_inbox.h"

#include <algorithm>

#include "base/check.h"

namespace smp::server {
namespace {

std::vector<PromisedInput>& promised_to(WorkerTask& task) {
  if (auto* forward = std::get_if<ForwardTask>(&task)) return forward->request.promised;
  return std::get<BackwardTask>(task).request.promised;
}

RequestName name_of(const WorkerTask& task) {
  if (const auto* forward = std::get_if<ForwardTask>(&task)) {
    return {forward->source, forward->request.request};
  }
  const auto& backward = std::get<BackwardTask>(task);
  return {backward.source, backward.request.request};
}

}  // namespace

void PromisedInbox::expect(Entry entry) {
  const auto& promised = promised_to(entry->task);
  const RequestName name = name_of(entry->task);
  entry->missing = promised.size();
  awaiting_.insert_or_assign(name, entry);
  // Until all of these were asked for, it is not complete, and so it stays where it is.
  auto unasked = std::ranges::count_if(promised, [&](auto& own) { return comes_when_asked(own); });
  auto early = too_early_.extract(name);
  if (!early.empty()) {
    for (auto& message : early.mapped()) take(std::move(message));
  }
  for (std::size_t i = 0; unasked > 0; ++i) {
    if (!comes_when_asked(promised[i])) continue;
    --unasked;
    ask(name, promised[i]);
  }
}

/// Of a gradient nobody asks.
bool PromisedInbox::comes_when_asked(const PromisedInput& input) const noexcept {
  return input.source.request && (input.ahead || input.source.owner == self_);
}

/// It may come at once.
void PromisedInbox::ask(const RequestName& name, const PromisedInput& input) {
  const auto [owner, request, output] = input.source;
  if (input.ahead)
    return await_ahead({{name.caller, request}, output}, {name.request, input.index});
  starter_.ask(name.caller, {request, output, self_, name.request, input.index});
}

void PromisedInbox::await_ahead(const AheadName& name, const AheadFor& to) {
  if (ahead_.contains(name)) return give_ahead(name, to);
  missing_ahead_[name].push_back(to);
}

void PromisedInbox::take_ahead(PassedOn&& message) {
  const AheadName source{{message.caller, message.consumer}, message.index};
  message.shared = message.times > 1;
  ahead_.insert_or_assign(source, std::move(message));
  auto missing = missing_ahead_.extract(source);
  if (missing.empty()) return;
  for (const auto& to : missing.mapped()) {
    if (cleared_) return;  // the first of them ended the step
    give_ahead(source, to);
  }
}

void PromisedInbox::give_ahead(const AheadName& name, const AheadFor& to) {
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

void PromisedInbox::take(PassedOn&& message) {
  if (cleared_) return;
  if (message.ahead) return take_ahead(std::move(message));
  const RequestName name{message.caller, message.consumer};
  const auto found = awaiting_.find(name);
  if (found == awaiting_.end()) return too_early_[name].push_back(std::move(message));
  const auto entry = found->second;
  put(*entry, std::move(message));
  if (entry->missing > 0) return;
  awaiting_.erase(found);
  complete_(entry);
}

void PromisedInbox::put(Waiting& waiting, PassedOn&& message) {
  auto& promised = promised_to(waiting.task);
  const auto input = std::find_if(promised.begin(), promised.end(), [&](const PromisedInput& own) {
    return own.index == message.index;
  });
  SMP_ASSERT(input != promised.end(), "tensor ", message.index, " was not promised");
  input->tensors = std::move(message.tensors);
  input->forms = std::move(message.forms);
  input->unusual = message.unusual;
  input->shared = message.shared;
  waiting.failed |= message.failed;
  --waiting.missing;
}

void PromisedInbox::clear() noexcept {
  cleared_ = true;
  awaiting_.clear();
  too_early_.clear();
  ahead_.clear();
  missing_ahead_.clear();
}

}  // namespace smp::server
