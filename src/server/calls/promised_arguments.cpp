// server/calls/promised_arguments.cpp: see the header.
#include "server/calls/promised_arguments.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "server/calls/promised_outputs.h"
#include "server/promises/promised_tensor.h"
#include "server/values/guarded_tensor.h"

namespace smp::server {
namespace {

std::shared_ptr<PromisedOutputs> outputs_of(const PromiseOf& promise) noexcept {
  return std::static_pointer_cast<PromisedOutputs>(promise.values);
}

bool is_twice(const std::vector<at::Tensor>& tensors, std::size_t index) {
  return std::count_if(tensors.begin(), tensors.end(),
                       [&](const auto& other) { return other.is_same(tensors[index]); }) > 1;
}

/// True for an ordinary tensor, and for a promise that can go straight to where it is needed. A
/// promise that is two arguments cannot: it must stay one tensor.
bool needs_no_fetch(const std::vector<at::Tensor>& tensors, std::size_t index) {
  const auto& tensor = tensors[index];
  if (guard_of(tensor) == nullptr) return true;
  const auto outputs = outputs_of(promise_of(tensor));
  return outputs != nullptr && !is_twice(tensors, index) && outputs->passes_on();
}

}  // namespace

void fetch_what_is_not_passed_on(std::vector<at::Tensor>& tensors) {
  for (std::size_t i = 0; i < tensors.size();) {
    if (needs_no_fetch(tensors, i)) {
      ++i;
      continue;
    }
    const auto given = tensors[i];
    const auto value = fetched(given);
    for (auto& tensor : tensors) {
      if (tensor.is_same(given)) tensor = value;
    }
    // What another tensor guards stays as it is. Calls of earlier arguments may have ended while
    // this waited.
    const bool fetched_it = guard_of(value) == nullptr || !value.is_same(given);
    i = fetched_it ? 0 : i + 1;
  }
}

std::vector<PromisedInput> name_promises(const std::vector<at::Tensor>& tensors, PpRank owner,
                                         OutputUses& uses) {
  std::vector<PromisedInput> named;
  for (std::uint32_t i = 0; i < tensors.size(); ++i) {
    if (guard_of(tensors[i]) == nullptr) continue;
    const auto promise = promise_of(tensors[i]);
    auto outputs = outputs_of(promise);
    if (outputs == nullptr) continue;
    named.push_back(outputs->pass_on(promise.index, owner));
    named.back().index = i;
    if (named.back().source.owner == owner) uses.emplace_back(std::move(outputs));
  }
  return named;
}

}  // namespace smp::server
