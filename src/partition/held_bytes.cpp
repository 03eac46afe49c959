// partition/held_bytes.cpp: first who keeps what, then a backward pass in the executor's order,
// in which every gradient is no more than its size.
#include "partition/held_bytes.h"

#include <algorithm>
#include <map>
#include <unordered_map>
#include <utility>

namespace smp::partition {
namespace {

using torch::autograd::Node;

std::int64_t bytes_of_input(const Node& node, std::uint32_t input) {
  if (input >= node.num_inputs()) return 0;
  const auto& metadata = node.input_metadata(input);
  if (metadata.was_default_constructed() || metadata.is_nested_tensor()) return 0;
  std::int64_t elements = 1;
  for (const auto& size : metadata.shape_as_dim_vector()) elements *= size.expect_int();
  return elements * static_cast<std::int64_t>(metadata.dtype().itemsize());
}

class Accountant {
 public:
  using Call = CallRecorder::Call;

  Accountant(const std::vector<KeepingNode>& nodes, std::vector<Trace>& traces)
      : nodes_(nodes), traces_(traces), freed_(nodes.size()) {}

  void run(const std::vector<HeldTensor>& held, const std::function<Call(std::uint64_t)>& call_of,
           const std::unordered_set<const void*>& weights) {
    for (const auto& [node, saved] : nodes_) {
      calls_.push_back(or_first(call_of(node->sequence_nr())));
    }
    count_saved(weights);
    for (const auto& tensor : held) count_lent(tensor, weights);
    run_backward();
  }

 private:
  /// A gradient on its way; several may be the same tensor.
  struct Gradient {
    std::int64_t tensor;
    std::int64_t bytes;
  };
  struct Pending {
    std::size_t node;  // that it waits for
    std::uint32_t input;
    Gradient gradient;
  };

  static Call or_first(const Call& call) { return call.number < 0 ? Call{0, 0} : call; }

  TracedCall* traced(const Call& call) {
    auto& calls = traces_.at(static_cast<std::size_t>(call.model)).calls;
    return calls.empty() ? nullptr : &calls.at(static_cast<std::size_t>(call.number));
  }

  // ---- what is kept -----------------------------------------------------------------------------

  void count_saved(const std::unordered_set<const void*>& weights) {
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      for (const auto& tensor : nodes_[i].saved) {
        if (!tensor.has_storage()) continue;
        const void* storage = tensor.storage().unsafeGetStorageImpl();
        if (weights.count(storage) != 0) continue;
        count_saved(i, storage, static_cast<std::int64_t>(tensor.storage().nbytes()));
      }
    }
    for (const auto& [bytes, calls] : kept_) {
      if (calls.size() > 1) add_shared(bytes, calls);
    }
  }

  void count_saved(std::size_t i, const void* storage, std::int64_t bytes) {
    const auto [found, is_new] = kept_index_.emplace(storage, kept_.size());
    if (is_new) {
      kept_.push_back({bytes, {}});
      freed_[i] += bytes;
      if (auto* call = traced(calls_[i])) call->activation_bytes += bytes;
    }
    if (!keeps(calls_[i], storage)) kept_[found->second].calls.push_back(calls_[i]);
  }

  bool keeps(const Call& call, const void* storage) const {
    const auto found = kept_index_.find(storage);
    if (found == kept_index_.end()) return false;
    const auto& calls = kept_[found->second].calls;
    return std::find(calls.begin(), calls.end(), call) != calls.end();
  }

  void count_lent(const HeldTensor& held, const std::unordered_set<const void*>& weights) {
    const void* storage = held.storage._unsafe_get_target();
    if (weights.count(storage) != 0) return;
    auto* const call = traced(held.call);
    if (call == nullptr) return;
    const Call caller = or_first({held.call.model, call->caller});
    const bool kept = held.argument ? keeps(caller, storage) : kept_index_.count(storage) != 0;
    if (!kept) call->lent_bytes += held.bytes;
  }

  void add_shared(std::int64_t bytes, const std::vector<Call>& calls) {
    SharedTensor shared{bytes, {}};
    for (const auto& call : calls) {
      if (call.model == calls[0].model) shared.calls.push_back(call.number);
    }
    if (shared.calls.size() > 1) traces_[calls[0].model].shared.push_back(std::move(shared));
  }

  // ---- backward ---------------------------------------------------------------------------------

  void run_backward() {
    std::unordered_map<const Node*, std::size_t> index;
    for (std::size_t i = 0; i < nodes_.size(); ++i) index.emplace(nodes_[i].node.get(), i);
    for (std::size_t i = nodes_.size(); i-- > 0;) {
      if (nodes_[i].node->num_outputs() == 0) continue;  // a leaf
      evaluate(i, index);
    }
  }

  void evaluate(std::size_t i, const std::unordered_map<const Node*, std::size_t>& index) {
    const Node& node = *nodes_[i].node;
    const Gradient incoming = arrived(i);
    std::int64_t made = 0;
    std::vector<Pending> leaving;
    for (const auto& edge : node.next_edges()) {
      if (!edge.is_valid()) continue;
      const auto bytes = bytes_of_input(*edge.function, edge.input_nr);
      const bool passed_on = nodes_[i].saved.empty() && bytes <= incoming.bytes;
      if (!passed_on) made += bytes;
      if (edge.function->num_outputs() == 0) continue;
      const auto gradient = passed_on ? incoming : Gradient{next_tensor_++, bytes};
      leaving.push_back({index.at(edge.function.get()), edge.input_nr, gradient});
    }
    note(i, made);
    std::erase_if(pending_, [&](const Pending& p) { return p.node == i; });
    for (const auto& p : leaving) deliver(p);
    freed_of_call_[key(calls_[i])] += freed_[i];
  }

  /// The largest input; for a node without any, what its metadata say (a root).
  Gradient arrived(std::size_t i) {
    Gradient largest{-1, 0};
    for (const auto& p : pending_) {
      if (p.node == i && p.gradient.bytes > largest.bytes) largest = p.gradient;
    }
    if (largest.tensor >= 0) return largest;
    const Gradient root{next_tensor_++, bytes_of_input(*nodes_[i].node, 0)};
    pending_.push_back({i, 0, root});
    return root;
  }

  /// Gradients that meet are summed into one.
  void deliver(const Pending& p) {
    for (auto& other : pending_) {
      if (other.node != p.node || other.input != p.input) continue;
      other.gradient = {next_tensor_++, std::max(other.gradient.bytes, p.gradient.bytes)};
      return;
    }
    pending_.push_back(p);
  }

  static std::pair<int, int> key(const Call& call) { return {call.model, call.number}; }

  void note(std::size_t i, std::int64_t made) {
    auto* const own = traced(calls_[i]);
    if (own == nullptr) return;
    std::unordered_set<std::int64_t> seen;
    const std::int64_t here =
        made + bytes_pending(calls_[i], seen) - freed_of_call_[key(calls_[i])];
    own->gradient_bytes = std::max(own->gradient_bytes, here);
    for (auto* call = own; call->caller >= 0;) {
      const Call caller{calls_[i].model, call->caller};
      call->waiting_bytes = std::max(call->waiting_bytes, bytes_pending(caller, seen));
      call = traced(caller);
    }
  }

  /// Of the gradients that wait for nodes of `call`, without those seen already.
  std::int64_t bytes_pending(const Call& call, std::unordered_set<std::int64_t>& seen) const {
    std::int64_t bytes = 0;
    for (const auto& p : pending_) {
      if (calls_[p.node] == call && seen.insert(p.gradient.tensor).second) {
        bytes += p.gradient.bytes;
      }
    }
    return bytes;
  }

  struct Kept {
    std::int64_t bytes;
    std::vector<Call> calls;
  };

  const std::vector<KeepingNode>& nodes_;
  std::vector<Trace>& traces_;
  std::vector<Call> calls_;          // of the nodes
  std::vector<std::int64_t> freed_;  // by the nodes, as they run
  std::vector<Kept> kept_;
  std::unordered_map<const void*, std::size_t> kept_index_;  // by storage
  std::vector<Pending> pending_;
  std::map<std::pair<int, int>, std::int64_t> freed_of_call_;
  std::int64_t next_tensor_ = 0;
};

}  // namespace

void account_held_bytes(const std::vector<KeepingNode>& nodes, const std::vector<HeldTensor>& held,
                        const std::function<CallRecorder::Call(std::uint64_t)>& call_of,
                        const std::unordered_set<const void*>& weights,
                        std::vector<Trace>& traces) {
  Accountant(nodes, traces).run(held, call_of, weights);
}

}  // namespace smp::partition
