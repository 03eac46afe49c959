// partition/held_log.cpp: a caller has its arguments and what earlier calls returned to it, as long
// as their storage lives.
#include "partition/held_log.h"

#include <ATen/SequenceNumber.h>

#include <algorithm>
#include <iterator>

#include "partition/saved_tensors.h"

namespace smp::partition {
namespace {

HeldTensor held_tensor(const CallRecorder::Call& call, const at::Tensor& tensor) {
  const auto& storage = tensor.storage();
  return {call, true, storage.getWeakStorageImpl(), static_cast<std::int64_t>(storage.nbytes())};
}

}  // namespace

HeldLog::HeldLog() : had_(1) { note_change({}, true); }

void HeldLog::begin(const Call& call) {
  had_.emplace_back();
  note_change(call, true);
}

void HeldLog::end(const Call& outer) {
  had_.pop_back();
  note_change(outer, false);
}

/// What the caller has as a call begins. Each storage once.
void HeldLog::note_arguments(const std::vector<at::Tensor>& arguments) {
  const auto call = changes_.back().call;
  std::unordered_set<const void*> seen;
  auto add = [&](const HeldTensor& tensor) {
    if (seen.insert(tensor.storage._unsafe_get_target()).second) held_.push_back(tensor);
  };
  for (const auto& tensor : arguments) {
    if (tensor.defined() && tensor.has_storage()) add(held_tensor(call, tensor));
  }
  auto& earlier = had_.at(had_.size() - 2);
  std::erase_if(earlier, [](const HeldTensor& tensor) { return tensor.storage.expired(); });
  for (auto tensor : earlier) {
    tensor.call = call;
    tensor.argument = false;
    add(tensor);
  }
}

void HeldLog::note_results(const std::vector<at::Tensor>& results) {
  for (const auto& tensor : results) {
    if (tensor.defined() && tensor.has_storage()) had_.back().push_back(held_tensor({}, tensor));
  }
}

void HeldLog::keep_graph(const std::vector<at::Tensor>& roots) {
  for (const auto& root : roots) {
    if (root.defined() && root.grad_fn()) roots_.push_back(root.grad_fn());
  }
}

void HeldLog::account(const std::unordered_set<const void*>& weights,
                      std::vector<Trace>& traces) const {
  const auto stretch_of = [this](std::uint64_t number) { return stretch_at(number); };
  account_held_bytes(keeping_nodes(roots_), held_, stretch_of, weights, traces);
}

void HeldLog::note_change(const Call& call, bool begins) {
  changes_.push_back({at::sequence_number::peek(), call, begins});
}

ModelStretch HeldLog::stretch_at(std::uint64_t sequence_number) const {
  const auto next = std::upper_bound(
      changes_.begin(), changes_.end(), sequence_number,
      [](std::uint64_t number, const Change& change) { return number < change.sequence_number; });
  const auto running = next == changes_.begin() ? Call{} : std::prev(next)->call;
  if (next != changes_.end() && next->begins &&
      (running.number < 0 || running.model == next->call.model)) {
    return {next->call.model, {next->call.number, true}};
  }
  return {std::max(0, running.model), {running.number, false}};
}

}  // namespace smp::partition
