// server/backward/gradient_chain.cpp: who follows whom, and all or none are started.
#include "server/backward/gradient_chain.h"

#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/autograd/anomaly_mode.h>

#include <algorithm>
#include <cstdint>
#include <utility>

namespace smp::server {
namespace {

/// One edge of the graph.
struct ChainEdge {
  NodeIndex target;
  std::uint32_t input, output;
  auto operator<=>(const ChainEdge&) const = default;
};

/// Appends the node that `edges` of `link` lead to, if it can be started with the chain.
void add_follower(BackwardGraph& graph, ChainLink& link, c10::ArrayRef<ChainEdge> edges,
                  const BackwardOptions& options, std::vector<ChainLink>& chain) {
  auto& entry = graph.nodes[edges.front().target];
  if (entry.dependencies != edges.size() || !may_be_ahead(entry)) return;
  const auto same_input = [](const ChainEdge& a, const ChainEdge& b) { return a.input == b.input; };
  if (std::adjacent_find(edges.begin(), edges.end(), same_input) != edges.end()) return;
  if (entry.kind != NodeKind::kAsync) return;
  auto* const next = static_cast<AsyncNode*>(entry.node);
  if (!link.node->can_pass_on_to(*next, options)) return;
  entry.started_ahead = true;
  auto& follower = chain.emplace_back(ChainLink{edges.front().target, next});
  for (const auto& edge : edges) {
    link.paths.out.push_back({edge.output, next, edge.input});
    follower.paths.in.push_back(edge.input);
  }
}

void add_followers(BackwardGraph& graph, ChainLink& link, const BackwardOptions& options,
                   std::vector<ChainLink>& chain) {
  AsyncNode& node = *link.node;
  if (!node.post_hooks().empty()) return;  // they see its gradients
  const auto* const targets = graph.targets.data() + graph.nodes[link.index].first_target;
  c10::SmallVector<ChainEdge, 8> edges;
  for (std::uint32_t i = 0; i < node.num_outputs(); ++i) {
    if (targets[i] == kNoNode || targets[i] == graph.nodes[link.index].older) continue;
    edges.push_back({targets[i], node.next_edge(i).input_nr, i});
  }
  std::sort(edges.begin(), edges.end());
  for (auto first = edges.begin(); first != edges.end();) {
    const auto last = std::find_if(
        first, edges.end(), [&](const ChainEdge& edge) { return edge.target != first->target; });
    add_follower(graph, link, {first, last}, options, chain);
    first = last;
  }
}

}  // namespace

bool may_be_ahead(const GraphNode& entry) {
  Node& node = *entry.node;
  const bool hooked = !node.tensor_pre_hooks().empty() || !node.retains_grad_hooks().empty() ||
                      !node.pre_hooks().empty() || !node.post_hooks().empty();
  return entry.execute && entry.first_capture < 0 && !hooked && !entry.reached;
}

std::vector<ChainLink> chain_from(BackwardGraph& graph, NodeIndex index, AsyncNode& node,
                                  const BackwardOptions& options) {
  std::vector<ChainLink> chain;
  if (torch::autograd::AnomalyMode::is_enabled()) return chain;
  ChainLink first{index, &node};
  add_followers(graph, first, options, chain);
  for (std::size_t i = 0; i < chain.size(); ++i) {
    auto link = std::move(chain[i]);
    add_followers(graph, link, options, chain);
    chain[i] = std::move(link);
  }
  if (!chain.empty()) chain.insert(chain.begin(), std::move(first));
  return chain;
}

void start_chain(const std::vector<ChainLink>& chain, variable_list&& gradients,
                 const BackwardOptions& options, Completion&& done, ReplyQueue& replies) {
  std::size_t joined = 0, started = 0;
  try {
    chain[0].node->join_chain(options, std::move(done));
    for (joined = 1; joined < chain.size(); ++joined) {
      chain[joined].node->join_chain(options, replies.expect_later(chain[joined].index));
    }
    for (; started < chain.size(); ++started) {
      const auto& link = chain[started];
      link.node->start_in_chain(std::exchange(gradients, {}), options, link.paths);
    }
  } catch (...) {
    for (; started < joined; ++started) chain[started].node->leave_chain();
    throw;
  }
}

}  // namespace smp::server
