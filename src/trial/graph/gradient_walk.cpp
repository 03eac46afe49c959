// trial/graph/gradient_walk.cpp: a backward pass in the executor's order, in which every gradient
// is no more than its size.
#include "trial/graph/gradient_walk.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <unordered_map>

namespace smp::partitioning {
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

class GradientWalk {
 public:
  using Call = CallRecorder::Call;

  explicit GradientWalk(const TracedGraph& graph) : graph_(graph) {}

  void run() {
    std::unordered_map<const Node*, std::size_t> index;
    const auto& nodes = graph_.nodes;
    for (std::size_t i = 0; i < nodes.size(); ++i) index.emplace(nodes[i].node.get(), i);
    for (std::size_t i = nodes.size(); i-- > 0;) {
      if (nodes[i].node->num_outputs() == 0) continue;  // a leaf
      evaluate(i, index);
    }
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

  void evaluate(std::size_t i, const std::unordered_map<const Node*, std::size_t>& index) {
    const Node& node = *graph_.nodes[i].node;
    const Gradient incoming = arrived(i);
    std::int64_t made = 0;
    std::vector<Pending> leaving;
    for (const auto& edge : node.next_edges()) {
      if (!edge.is_valid()) continue;
      const auto bytes = bytes_of_input(*edge.function, edge.input_nr);
      const bool passed_on = graph_.nodes[i].saved.empty() && bytes <= incoming.bytes;
      if (!passed_on) made += bytes;
      if (edge.function->num_outputs() == 0) continue;
      const auto gradient = passed_on ? incoming : Gradient{next_tensor_++, bytes};
      leaving.push_back({index.at(edge.function.get()), edge.input_nr, gradient, graph_.calls[i]});
    }
    // oneDNN makes the gradient of a convolution's input in a layout of its own first.
    const bool twice = node.name() == "ConvolutionBackward0" && !leaving.empty();
    note(i, twice ? made + leaving[0].gradient.bytes : made);
    std::erase_if(pending_, [&](const Pending& p) { return p.node == i; });
    for (const auto& p : leaving) deliver(p);
    freed_of_interval_[key(graph_.intervals[i])] += graph_.freed[i];
  }

  /// Returns the largest gradient that waits for node `i`; if there is none (a root of the backward
  /// pass), a new one as large as the node's metadata say.
  Gradient arrived(std::size_t i) {
    Gradient largest{-1, 0};
    for (const auto& p : pending_) {
      if (p.node == i && p.gradient.bytes > largest.bytes) largest = p.gradient;
    }
    if (largest.tensor >= 0) return largest;
    const Gradient root{next_tensor_++, bytes_of_input(*graph_.nodes[i].node, 0)};
    pending_.push_back({i, 0, root, graph_.calls[i]});
    return root;
  }

  /// Adds the gradient to those that wait; if one for the same input of the same node waits
  /// already, the two are summed into a new tensor.
  void deliver(const Pending& p) {
    for (auto& other : pending_) {
      if (other.node != p.node || other.input != p.input) continue;
      other.gradient = {next_tensor_++, bytes_of_input(*graph_.nodes[p.node].node, p.input)};
      const auto way = way_up(p.maker);
      const auto meeting = meeting_place(way, other.maker);
      other.maker = meeting < way.size() ? way[meeting] : Call{};
      return;
    }
    pending_.push_back(p);
  }

  using Key = std::tuple<int, int, bool>;
  static Key key(const ModelInterval& id) {
    return {id.model, id.interval.call, id.interval.before};
  }

  /// Notes which gradients are live at each running call while node `i` runs. In backward, a call
  /// that is over has given its gradients to its caller, and a call that has begun has received
  /// those for all of its results. So a gradient is held by the innermost running call that
  /// contains its maker or the node that waits for it.
  void note(std::size_t i, std::int64_t made) {
    const auto way = way_up(graph_.calls[i]);
    std::vector<std::int64_t> waiting(way.size() + 1);  // at each call of the way, then at the body
    std::unordered_map<std::int64_t, std::size_t> seen;  // innermost place of each tensor
    for (const auto& p : pending_) {
      const auto place =
          std::min(meeting_place(way, graph_.calls[p.node]), meeting_place(way, p.maker));
      const auto [found, is_new] = seen.emplace(p.gradient.tensor, place);
      if (is_new) {
        waiting[place] += p.gradient.bytes;
      } else if (place < found->second) {
        waiting[found->second] -= p.gradient.bytes;
        waiting[place] += p.gradient.bytes;
        found->second = place;
      }
    }
    auto& own = graph_.traced(graph_.intervals[i]).gradient_bytes;
    own = std::max(own, made + waiting[0] - freed_of_interval_[key(graph_.intervals[i])]);
    for (std::size_t level = 0; level < way.size(); ++level) {
      auto& bytes = graph_.traced(way[level]).caller_gradient_bytes;
      bytes = std::max(bytes, waiting[level + 1]);
    }
  }

  /// Returns `call`, its caller, the caller of that one, and so on; the innermost comes first.
  std::vector<Call> way_up(Call call) {
    std::vector<Call> way;
    for (; call.number >= 0; call = graph_.caller_of(call)) way.push_back(call);
    return way;
  }

  /// Returns the index on `way` of the innermost call that `call` is part of; way.size() if they
  /// have only the body in common.
  std::size_t meeting_place(const std::vector<Call>& way, const Call& call) {
    for (const auto& above : way_up(call)) {
      const auto found = std::find(way.begin(), way.end(), above);
      if (found != way.end()) return static_cast<std::size_t>(found - way.begin());
    }
    return way.size();
  }

  const TracedGraph& graph_;
  std::vector<Pending> pending_;
  std::map<Key, std::int64_t> freed_of_interval_;
  std::int64_t next_tensor_ = 0;
};

}  // namespace

void account_gradients(const TracedGraph& graph) { GradientWalk(graph).run(); }

}  // namespace smp::partitioning
