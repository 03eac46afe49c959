// partition/held_bytes.cpp: first who keeps what, then a backward pass in the executor's order,
// in which every gradient is no more than its size.
#include "partition/held_bytes.h"

#include <algorithm>
#include <map>
#include <tuple>
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

  void run(const std::vector<HeldTensor>& held,
           const std::function<ModelStretch(std::uint64_t)>& stretch_of,
           const std::unordered_set<const void*>& weights) {
    for (const auto& [node, saved] : nodes_) {
      stretches_.push_back(stretch_of(node->sequence_nr()));
      calls_.push_back(call_of(stretches_.back()));
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
    Call maker;
  };

  TracedCall& traced(const Call& call) { return traces_.at(call.model).calls.at(call.number); }

  Call caller_of(const Call& call) {
    const int caller = traced(call).caller;
    return caller < 0 ? Call{} : Call{call.model, caller};
  }

  Stretch& traced(const ModelStretch& id) {
    if (id.stretch.call < 0) return traces_.at(id.model).body_after;
    auto& call = traced(Call{id.model, id.stretch.call});
    return id.stretch.before ? call.before : call.after;
  }

  Call call_of(const ModelStretch& id) {
    if (id.stretch.call < 0) return {};
    const Call call{id.model, id.stretch.call};
    return id.stretch.before ? caller_of(call) : call;
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
    for (const auto& [bytes, nodes] : kept_) {
      if (nodes.size() > 1) add_shared(bytes, nodes);
    }
  }

  void count_saved(std::size_t i, const void* storage, std::int64_t bytes) {
    const auto [found, is_new] = kept_index_.emplace(storage, kept_.size());
    if (is_new) {
      kept_.push_back({bytes, {}});
      freed_[i] += bytes;
      traced(stretches_[i]).activation_bytes += bytes;
    }
    if (!keeps(calls_[i], storage)) kept_[found->second].nodes.push_back(i);
  }

  bool keeps(const Call& call, const void* storage) const {
    const auto found = kept_index_.find(storage);
    if (found == kept_index_.end()) return false;
    const auto& nodes = kept_[found->second].nodes;
    return std::any_of(nodes.begin(), nodes.end(), [&](auto node) { return calls_[node] == call; });
  }

  void count_lent(const HeldTensor& held, const std::unordered_set<const void*>& weights) {
    const void* storage = held.storage._unsafe_get_target();
    if (weights.count(storage) != 0) return;
    const bool kept =
        held.argument ? keeps(caller_of(held.call), storage) : kept_index_.count(storage) != 0;
    if (!kept) traced(held.call).lent_bytes += held.bytes;
  }

  void add_shared(std::int64_t bytes, const std::vector<std::size_t>& nodes) {
    const int model = stretches_[nodes[0]].model;
    SharedTensor shared{bytes, {}};
    for (const auto node : nodes) {
      if (stretches_[node].model == model) shared.keepers.push_back(stretches_[node].stretch);
    }
    if (shared.keepers.size() > 1) traces_[model].shared.push_back(std::move(shared));
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
      leaving.push_back({index.at(edge.function.get()), edge.input_nr, gradient, calls_[i]});
    }
    // oneDNN makes the gradient of a convolution's input in a layout of its own first.
    const bool twice = node.name() == "ConvolutionBackward0" && !leaving.empty();
    note(i, twice ? made + leaving[0].gradient.bytes : made);
    std::erase_if(pending_, [&](const Pending& p) { return p.node == i; });
    for (const auto& p : leaving) deliver(p);
    freed_of_stretch_[key(stretches_[i])] += freed_[i];
  }

  /// The largest input; for a node without any, what its metadata say (a root).
  Gradient arrived(std::size_t i) {
    Gradient largest{-1, 0};
    for (const auto& p : pending_) {
      if (p.node == i && p.gradient.bytes > largest.bytes) largest = p.gradient;
    }
    if (largest.tensor >= 0) return largest;
    const Gradient root{next_tensor_++, bytes_of_input(*nodes_[i].node, 0)};
    pending_.push_back({i, 0, root, calls_[i]});
    return root;
  }

  /// Gradients that meet are summed into one, of its own.
  void deliver(const Pending& p) {
    for (auto& other : pending_) {
      if (other.node != p.node || other.input != p.input) continue;
      other.gradient = {next_tensor_++, bytes_of_input(*nodes_[p.node].node, p.input)};
      const auto way = way_up(p.maker);
      const auto meeting = meeting_place(way, other.maker);
      other.maker = meeting < way.size() ? way[meeting] : Call{};
      return;
    }
    pending_.push_back(p);
  }

  using Key = std::tuple<int, int, bool>;
  static Key key(const ModelStretch& id) { return {id.model, id.stretch.call, id.stretch.before}; }

  /// Calls that are over gave their gradients to their callers, and a call that has begun its
  /// backward got those for all of its results: a gradient is with the innermost running call that
  /// its maker or its taker is part of.
  void note(std::size_t i, std::int64_t made) {
    const auto way = way_up(calls_[i]);
    std::vector<std::int64_t> waiting(way.size() + 1);  // at each call of the way, then at the body
    std::unordered_map<std::int64_t, std::size_t> seen;  // innermost place of each tensor
    for (const auto& p : pending_) {
      const auto place = std::min(meeting_place(way, calls_[p.node]), meeting_place(way, p.maker));
      const auto [found, is_new] = seen.emplace(p.gradient.tensor, place);
      if (is_new) {
        waiting[place] += p.gradient.bytes;
      } else if (place < found->second) {
        waiting[found->second] -= p.gradient.bytes;
        waiting[place] += p.gradient.bytes;
        found->second = place;
      }
    }
    auto& own = traced(stretches_[i]).gradient_bytes;
    own = std::max(own, made + waiting[0] - freed_of_stretch_[key(stretches_[i])]);
    for (std::size_t level = 0; level < way.size(); ++level) {
      auto& bytes = traced(way[level]).waiting_bytes;
      bytes = std::max(bytes, waiting[level + 1]);
    }
  }

  /// `call`, its caller, and so on.
  std::vector<Call> way_up(Call call) {
    std::vector<Call> way;
    for (; call.number >= 0; call = caller_of(call)) way.push_back(call);
    return way;
  }

  /// Index on `way` of the innermost call that `call` is part of; way.size(): only the body.
  std::size_t meeting_place(const std::vector<Call>& way, const Call& call) {
    for (const auto& above : way_up(call)) {
      const auto found = std::find(way.begin(), way.end(), above);
      if (found != way.end()) return static_cast<std::size_t>(found - way.begin());
    }
    return way.size();
  }

  struct Kept {
    std::int64_t bytes;
    std::vector<std::size_t> nodes;  // by which, one a call
  };

  const std::vector<KeepingNode>& nodes_;
  std::vector<Trace>& traces_;
  std::vector<ModelStretch> stretches_;  // of the nodes
  std::vector<Call> calls_;              // of the nodes
  std::vector<std::int64_t> freed_;      // by the nodes, as they run
  std::vector<Kept> kept_;
  std::unordered_map<const void*, std::size_t> kept_index_;  // by storage
  std::vector<Pending> pending_;
  std::map<Key, std::int64_t> freed_of_stretch_;
  std::int64_t next_tensor_ = 0;
};

}  // namespace

void account_held_bytes(const std::vector<KeepingNode>& nodes, const std::vector<HeldTensor>& held,
                        const std::function<ModelStretch(std::uint64_t)>& stretch_of,
                        const std::unordered_set<const void*>& weights,
                        std::vector<Trace>& traces) {
  Accountant(nodes, traces).run(held, stretch_of, weights);
}

}  // namespace smp::partition
