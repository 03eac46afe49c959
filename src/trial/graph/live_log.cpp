// trial/graph/live_log.cpp: a caller has its arguments and what earlier calls returned to it, as
// long as their storage lives.
#include "trial/graph/live_log.h"

#include <ATen/SequenceNumber.h>

#include <algorithm>
#include <iterator>

#include "trial/graph/saved_tensors.h"

namespace smp::partitioning {
namespace {

LiveTensor live_tensor(const CallRecorder::Call& call, const at::Tensor& tensor) {
  const auto& storage = tensor.storage();
  return {call, true, storage.getWeakStorageImpl(), static_cast<std::int64_t>(storage.nbytes())};
}

}  // namespace

LiveLog::LiveLog() : results_(1) { note_change({}, true); }

void LiveLog::begin(const Call& call) {
  results_.emplace_back();
  running_.push_back(call);
  note_change(call, true);
}

void LiveLog::end(const Call& outer) {
  results_.pop_back();
  ended_ = running_.back();
  running_.pop_back();
  note_change(outer, false);
}

/// Notes what the caller holds as a call begins, arguments and results of earlier calls that are
/// still alive, each storage once.
void LiveLog::note_arguments(const std::vector<at::Tensor>& arguments) {
  const auto call = changes_.back().call;
  std::unordered_set<const void*> seen;
  auto add = [&](const LiveTensor& tensor) {
    if (seen.insert(tensor.storage._unsafe_get_target()).second) live_.push_back(tensor);
  };
  for (const auto& tensor : arguments) {
    if (tensor.defined() && tensor.has_storage()) add(live_tensor(call, tensor));
  }
  auto& earlier = results_.at(results_.size() - 2);
  std::erase_if(earlier, [](const LiveTensor& tensor) { return tensor.storage.expired(); });
  for (auto tensor : earlier) {
    tensor.call = call;
    tensor.argument = false;
    add(tensor);
  }
}

void LiveLog::note_results(const std::vector<at::Tensor>& results) {
  for (const auto& tensor : results) {
    if (!tensor.defined() || !tensor.has_storage()) continue;
    results_.back().push_back(live_tensor({}, tensor));
    returned_.push_back(live_tensor(ended_, tensor));
  }
}

void LiveLog::note_product(const at::Tensor& tensor) {
  if (tensor.has_storage()) products_.push_back(tensor.storage().getWeakStorageImpl());
}

void LiveLog::keep_graph(const std::vector<at::Tensor>& roots) {
  for (const auto& root : roots) {
    if (root.defined() && root.grad_fn()) roots_.push_back(root.grad_fn());
  }
}

void LiveLog::account(const std::unordered_set<const void*>& weights,
                      std::vector<simulate::Trace>& traces) const {
  const auto interval_of = [this](std::uint64_t number) { return interval_at(number); };
  const auto nodes = keeping_nodes(roots_);
  std::unordered_set<const void*> batch;
  for (const auto& tensor : batch_) {
    if (tensor.defined() && tensor.has_storage()) {
      batch.insert(tensor.storage().unsafeGetStorageImpl());
    }
  }
  std::unordered_set<const void*> products;
  for (const auto& storage : products_) products.insert(storage._unsafe_get_target());
  account_live_bytes(nodes, live_, returned_, interval_of, {weights, batch, products}, traces);
  auto& silent = traces.front().silent_nodes;
  for (const auto& node : nodes) {
    const auto name = node.fault.empty() ? std::string() : node.node->name();
    const bool known = std::find(silent.begin(), silent.end(), name) != silent.end();
    if (!name.empty() && !known) silent.push_back(name);
  }
}

void LiveLog::note_change(const Call& call, bool begins) {
  changes_.push_back({at::sequence_number::peek(), call, begins});
}

ModelInterval LiveLog::interval_at(std::uint64_t sequence_number) const {
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

}  // namespace smp::partitioning
