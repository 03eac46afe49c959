// server/graph/product_nodes.cpp: the nodes by name, since LibTorch does not export their types.
#include "server/graph/product_nodes.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <typeinfo>
#include <utility>

namespace smp::server {

using torch::autograd::Node;

bool computes_gradients_apart(const Node& node) noexcept {
  static constexpr std::array<std::string_view, 8> kTypes = {
      "N5torch8autograd9generated14AddmmBackward0E",
      "N5torch8autograd9generated11MmBackward0E",
      "N5torch8autograd9generated12BmmBackward0E",
      "N5torch8autograd9generated16BaddbmmBackward0E",
      "N5torch8autograd9generated15AddbmmBackward0E",
      "N5torch8autograd9generated11MvBackward0E",
      "N5torch8autograd9generated14AddmvBackward0E",
      "N5torch8autograd9generated20ConvolutionBackward0E",
  };
  const std::string_view type = typeid(node).name();
  return std::find(kTypes.begin(), kTypes.end(), type) != kTypes.end();
}

MaskedEdges::~MaskedEdges() {
  for (auto& taken : taken_) node_.next_edges()[taken.index] = std::move(taken.edge);
}

void MaskedEdges::take(std::size_t edge) {
  taken_.push_back({edge, std::exchange(node_.next_edges()[edge], torch::autograd::Edge())});
}

}  // namespace smp::server
