// server/graph/graph_border.cpp: see the header.
#include "server/graph/graph_border.h"

#include <utility>
#include <vector>

namespace smp::server {

GraphBorder::GraphBorder(const edge_list& edges) {
  std::vector<const edge_list*> waiting{&edges};
  while (!waiting.empty()) {
    const auto& next = *waiting.back();
    waiting.pop_back();
    for (const auto& edge : next) {
      if (!edge.is_valid() || !nodes_.insert(edge.function.get()).second) continue;
      waiting.push_back(&edge.function->next_edges());
    }
  }
}

void GraphBorder::keep(Node& node, variable_list&& inputs) {
  const auto before = left_.edges.size();
  for (std::uint32_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].defined()) add(node, i, std::move(inputs[i]));
  }
  if (left_.edges.size() == before) add(node, 0, {});
}

void GraphBorder::add(Node& node, std::uint32_t input, at::Tensor&& gradient) {
  left_.edges.emplace_back(owner_of(&node), input);
  left_.gradients.push_back(std::move(gradient));
}

}  // namespace smp::server
