// server/requests/promised_gradients.cpp: counts what is missing.
#include "server/requests/promised_gradients.h"

#include <algorithm>

#include "base/check.h"

namespace smp::server {

void PromisedGradients::add(BackwardTask&& task) {
  const RequestName name{task.source, task.request.request};
  const auto missing = task.request.promised.size();
  waiting_.insert_or_assign(name, Waiting{std::move(task), missing, false});
  auto early = too_early_.extract(name);
  if (early.empty()) return;
  for (auto& message : early.mapped()) take(std::move(message));
}

void PromisedGradients::take(PassedOn&& message) {
  const RequestName name{message.caller, message.consumer};
  const auto found = waiting_.find(name);
  if (found == waiting_.end()) return too_early_[name].push_back(std::move(message));
  auto& [task, missing, failed] = found->second;
  auto& promised = task.request.promised;
  const auto input = std::find_if(promised.begin(), promised.end(), [&](const PromisedInput& own) {
    return own.index == message.index;
  });
  SMP_ASSERT(input != promised.end(), "gradient ", message.index, " was not promised");
  input->tensors = std::move(message.tensors);
  input->forms = std::move(message.forms);
  failed |= message.failed;
  if (--missing > 0) return;
  auto complete = std::move(waiting_.extract(found).mapped());
  start_(std::move(complete.task), complete.failed);
}

std::vector<const BackwardTask*> PromisedGradients::waiting() const {
  std::vector<const BackwardTask*> all;
  for (const auto& [name, waiting] : waiting_) all.push_back(&waiting.task);
  return all;
}

void PromisedGradients::clear() noexcept {
  waiting_.clear();
  too_early_.clear();
}

}  // namespace smp::server
