// server/graph/special_nodes.cpp: the nodes of ours that stand in an autograd graph.
#include "server/graph/special_nodes.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/check.h"
#include "d2d/tensors/tensor_data.h"
#include "module/node_pointer.h"
#include "server/graph/gradient_sum.h"
#include "server/running/execution_scope.h"

namespace smp::server {
namespace {

[[noreturn]] void refuse_stock_engine(const std::string& node) {
  throw UsageError(base::concat(
      "loss.backward() or torch::autograd::grad() reached ", node,
      ", a part of a DistributedModel that LibTorch's own engine cannot run: it would have to wait "
      "for other ranks. Call model.backward(loss) instead of loss.backward(), and "
      "smp::grad(outputs, inputs) instead of torch::autograd::grad(outputs, inputs)."));
}

}  // namespace

variable_list AsyncNode::apply(variable_list&&) { refuse_stock_engine(name()); }

void AsyncNode::unpack(variable_list&) {}

void AsyncNode::leave_rest_to(const AsyncNode& /*older*/) {}
void AsyncNode::take_rest_of(const AsyncNode& /*younger*/) {}

bool AsyncNode::uses_itself(std::uint32_t) const { return false; }

void AsyncNode::require_whole_gradient(std::uint32_t) const {}

bool AsyncNode::can_pass_on_to(const AsyncNode&, const BackwardOptions&) const { return false; }

void AsyncNode::join_chain(const BackwardOptions&, Completion) {
  SMP_ASSERT(false, name(), " passes nothing on");
}

void AsyncNode::start_in_chain(variable_list&&, const BackwardOptions&, const Paths&) {
  SMP_ASSERT(false, name(), " passes nothing on");
}

void AsyncNode::leave_chain() noexcept {}

bool AsyncNode::has_passed_on(std::uint32_t) const { return false; }

void AsyncNode::not_reached() noexcept {}

fiber::WaitReason AsyncNode::wait_reason() const { return {"a backward reply"}; }

variable_list BoundaryInput::apply(variable_list&& gradients) {
  take(std::move(gradients), nullptr);
  return {};
}

void BoundaryInput::take(variable_list&& gradients, const BoundaryInput* of_pass) {
  const bool of_this = of_pass != nullptr && of_pass->leads_to(*this);
  const bool fetched = !closed_ && (!execution_ || of_this);
  const auto defined = [](const at::Tensor& gradient) { return gradient.defined(); };
  if (!fetched && std::any_of(gradients.begin(), gradients.end(), defined)) refuse();
  captured.resize(gradients.size());
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    add_gradient(captured[i], std::move(gradients[i]));
  }
}

bool BoundaryInput::leads_to(const BoundaryInput& other) const noexcept {
  const auto* own = this;
  while (own != nullptr && own != &other) own = own->older_.get();
  return own != nullptr;
}

edge_list BoundaryInput::edges_into(NodePointer<BoundaryInput> boundary) {
  edge_list edges;
  for (; boundary; boundary = boundary->older_) {
    for (std::uint32_t i = 0; i < boundary->num_inputs(); ++i) edges.emplace_back(boundary, i);
  }
  return edges;
}

variable_list BoundaryInput::fetch() {
  auto all = std::exchange(captured, {});
  all.resize(num_inputs());
  if (!older_) return all;
  auto more = older_->fetch();
  all.insert(all.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
  return all;
}

void BoundaryInput::refuse() const {
  const auto* scope = ExecutionScope::current();
  char who[256] = "outside of a step";
  if (scope != nullptr) scope->describe(who, sizeof who);
  SMP_REQUIRE(execution_, who,
              ": a gradient reached an argument of a step that is over; do not keep tensors with "
              "history from one step to the next (detach() them)");
  const char* path = scope == nullptr ? "?" : scope->services().modules.path(execution_->module);
  const auto call = base::concat("the arguments of the call of module '", path, "' for microbatch ",
                                 execution_->microbatch);
  SMP_REQUIRE(torch::autograd::get_current_graph_task_id() == -1, who,
              ": loss.backward() or torch::autograd::grad() inside a module reached ", call,
              ", which come from another rank: LibTorch's own engine cannot go on there. detach() "
              "what the inner loss must not reach, return the loss and call model.backward() in "
              "the step's body, or place the module with its caller");
  throw UsageError(base::concat(
      who, ": its backward reached ", call,
      ", which is another call: a tensor with history was kept from one call of a module to "
      "another (a hidden state, a cached output), and its gradient would have to go to another "
      "rank. Pass "
      "it as an argument and a result, detach() it, or place the module with its caller"));
}

NodePointer<BoundaryInput> make_boundary(std::vector<at::Tensor>& tensors,
                                         const TensorFlags& requires_grad) {
  SMP_ASSERT(tensors.size() == requires_grad.size(), tensors.size(), " tensors, ",
             requires_grad.size(), " flags");
  auto boundary = make_node<BoundaryInput>();
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (requires_grad[i]) {
      torch::autograd::set_history(tensors[i], boundary);
    } else {
      boundary->add_input_metadata(Node::undefined_input{});
    }
  }
  return boundary;
}

}  // namespace smp::server
