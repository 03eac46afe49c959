// trial/graph/live_bytes.cpp: who keeps what for backward, and what callers have meanwhile.
#include "trial/graph/live_bytes.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "trial/graph/gradient_walk.h"
#include "trial/graph/tensor_uses.h"
#include "trial/graph/traced_graph.h"

namespace smp::partitioning {
namespace {

/// True for the node of a torch::autograd::Function, whose backward the user wrote.
bool is_users(const torch::autograd::Node& node) {
  return node.name().find("torch::autograd::CppNode") != std::string::npos;
}

class Accountant {
 public:
  using Call = CallRecorder::Call;

  Accountant(TracedGraph& graph, const KnownStorages& known) : graph_(graph), known_(known) {}

  void count_saved() {
    for (std::size_t i = 0; i < graph_.nodes.size(); ++i) {
      for (const auto& tensor : graph_.nodes[i].saved) {
        if (!tensor.has_storage()) continue;
        const void* storage = tensor.storage().unsafeGetStorageImpl();
        if (known_.weights.count(storage) != 0) continue;
        count_saved(i, storage, static_cast<std::int64_t>(tensor.storage().nbytes()));
      }
    }
    for (const auto& [bytes, of_batch, nodes] : kept_) {
      if (of_batch) {
        add_shared_batch(bytes, nodes);
      } else if (nodes.size() > 1) {
        add_shared(bytes, nodes);
      }
    }
  }

  /// Notes which tensors calls got, returned, and keep.
  void note_uses(const std::vector<LiveTensor>& live, const std::vector<LiveTensor>& returned) {
    TensorUses uses(graph_, known_);
    for (const auto& [storage, index] : kept_index_) uses.add_kept(storage, kept_[index].nodes);
    uses.add(live, returned);
    uses.write();
  }

  /// Marks backward times as unknown where the user wrote the backward: the operators of the
  /// forward pass do not tell how long it takes.
  void forget_own_backwards() {
    for (std::size_t i = 0; i < graph_.nodes.size(); ++i) {
      if (!is_users(*graph_.nodes[i].node)) continue;
      auto& interval = graph_.traced(graph_.intervals[i]);
      interval.backward_seconds = -1;
      interval.weight_seconds = 0;
    }
  }

  void count_caller_live(const LiveTensor& live) {
    const void* storage = live.storage._unsafe_get_target();
    if (known_.weights.count(storage) != 0 || known_.batch.count(storage) != 0) return;
    const bool kept = live.argument ? keeps(graph_.caller_of(live.call), storage)
                                    : kept_index_.count(storage) != 0;
    if (!kept) graph_.traced(live.call).caller_live_bytes += live.bytes;
  }

 private:
  void count_saved(std::size_t i, const void* storage, std::int64_t bytes) {
    const auto [found, is_new] = kept_index_.emplace(storage, kept_.size());
    if (is_new) {
      const bool of_batch = known_.batch.count(storage) != 0;
      kept_.push_back({bytes, of_batch, {}});
      if (!of_batch) {
        graph_.freed[i] += bytes;
        auto& interval = graph_.traced(graph_.intervals[i]);
        interval.activation_bytes += bytes;
        if (known_.products.count(storage) != 0) interval.saved_product_bytes += bytes;
      }
    }
    if (!keeps(graph_.calls[i], storage)) kept_[found->second].nodes.push_back(i);
  }

  bool keeps(const Call& call, const void* storage) const {
    const auto found = kept_index_.find(storage);
    if (found == kept_index_.end()) return false;
    const auto& nodes = kept_[found->second].nodes;
    return std::any_of(nodes.begin(), nodes.end(),
                       [&](auto node) { return graph_.calls[node] == call; });
  }

  void add_shared(std::int64_t bytes, const std::vector<std::size_t>& nodes) {
    const int model = graph_.intervals[nodes[0]].model;
    simulate::SharedTensor shared{bytes, {}};
    for (const auto node : nodes) {
      const auto& [keeper_model, interval] = graph_.intervals[node];
      if (keeper_model == model) shared.keepers.push_back(interval);
    }
    if (shared.keepers.size() > 1) graph_.traces[model].shared.push_back(std::move(shared));
  }

  /// Makes the body the first keeper of a tensor of the batch: it has it without counting it.
  void add_shared_batch(std::int64_t bytes, const std::vector<std::size_t>& nodes) {
    constexpr simulate::IntervalId kStart{0, true};
    for (std::size_t m = 0; m < graph_.traces.size(); ++m) {
      if (graph_.traces[m].calls.empty()) continue;
      simulate::SharedTensor shared{bytes, {kStart}};
      for (const auto node : nodes) {
        const auto& [model, interval] = graph_.intervals[node];
        const bool own = model == static_cast<int>(m) && !(interval == kStart);
        if (own) shared.keepers.push_back(interval);
      }
      if (shared.keepers.size() > 1) graph_.traces[m].shared.push_back(std::move(shared));
    }
  }

  struct Kept {
    std::int64_t bytes;
    bool of_batch;
    std::vector<std::size_t> nodes;  // by which, one a call
  };

  TracedGraph& graph_;
  const KnownStorages& known_;
  std::vector<Kept> kept_;
  std::unordered_map<const void*, std::size_t> kept_index_;  // by storage
};

}  // namespace

void account_live_bytes(const std::vector<KeepingNode>& nodes, const std::vector<LiveTensor>& live,
                        const std::vector<LiveTensor>& returned,
                        const std::function<ModelInterval(std::uint64_t)>& interval_of,
                        const KnownStorages& known, std::vector<simulate::Trace>& traces) {
  TracedGraph graph{nodes, traces};
  for (const auto& keeping : nodes) {
    graph.intervals.push_back(interval_of(keeping.node->sequence_nr()));
    graph.calls.push_back(graph.call_of(graph.intervals.back()));
  }
  graph.freed.resize(nodes.size());
  Accountant accountant(graph, known);
  accountant.count_saved();
  for (const auto& tensor : live) accountant.count_caller_live(tensor);
  accountant.note_uses(live, returned);
  accountant.forget_own_backwards();
  account_gradients(graph);
}

}  // namespace smp::partitioning
