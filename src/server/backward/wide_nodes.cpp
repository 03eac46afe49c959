// server/backward/wide_nodes.cpp: see the header.
#include "server/backward/wide_nodes.h"

#include <torch/csrc/autograd/generated/Functions.h>

#include <typeinfo>

namespace smp::server {

void widen_sums(const torch::autograd::Node& node, torch::autograd::variable_list& gradients) {
  using namespace torch::autograd::generated;
  if (gradients.size() != 1 || !gradients[0].defined()) return;
  if (!at::isReducedFloatingType(gradients[0].scalar_type())) return;
  if (typeid(node) == typeid(EmbeddingBackward0)) gradients[0] = gradients[0].to(at::kFloat);
}

}  // namespace smp::server
