// tp/group/primitives.cpp: an exchange in forward, and a node that carries out its dual.
#include "smp/tp/primitives.h"
#include "module/node_pointer.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include <memory>
#include <string>
#include <utility>

#include "base/check.h"
#include "module/kept_results.h"
#include "module/waiting_node.h"
#include "tp/group/exchange.h"
#include "tp/group/tensor_parallel.h"

namespace smp {
namespace {

using tp::Exchange;
using tp::Meeting;
using tp::TensorParallel;

/// Carries `exchange` out. An error gets the rank, module and microbatch in front of its text.
at::Tensor run(const Exchange& exchange, const d2d::Communicator& ranks, const Meeting& meeting,
               const at::Tensor& tensor) {
  try {
    return exchange.run(ranks, tensor);
  } catch (const UsageError& error) {
    throw UsageError(base::concat(
        meeting.text(), ": ", error.what(),
        " Give every rank of the tensor-parallel group batches of the same shape and dtype."));
  }
}

class ExchangeNode final : public module::SuspendingNode {
 public:
  ExchangeNode(const Exchange& backward, std::shared_ptr<const Meeting> meeting, const char* name)
      : backward_(backward), meeting_(std::move(meeting)), name_(name) {}

  torch::autograd::variable_list run(torch::autograd::variable_list&& gradients) override {
    TensorParallel::current().require_current(*meeting_);
    // Another rank may have a gradient where this one has none.
    const auto gradient = gradients[0].defined() ? gradients[0] : input_metadata(0).zeros_like();
    const bool moves = !backward_.is_identity();
    auto result = moves ? smp::run(backward_, meeting_->backward(), *meeting_, gradient) : gradient;
    return {at::GradMode::is_enabled() ? with_history(result, gradient) : result};
  }
  std::string name() const override { return name_; }

 private:
  /// With create_graph: gives `result` the history that it has as what this exchange made of
  /// `gradient`. So on every rank of the group, also where nothing led to the gradient: they meet
  /// there again.
  at::Tensor with_history(const at::Tensor& result, const at::Tensor& gradient) const {
    auto meeting = TensorParallel::current().meet(name_);
    const auto node = make_node<ExchangeNode>(backward_.dual(), std::move(meeting), name_);
    node->set_next_edges(torch::autograd::collect_next_edges(gradient));
    auto differentiable = result.detach();
    torch::autograd::set_history(differentiable, node);
    return differentiable;
  }

  const Exchange backward_;
  const std::shared_ptr<const Meeting> meeting_;
  const char* const name_;
};

void check(const Exchange& exchange, const at::Tensor& tensor, int size, const char* name) {
  const auto dim = exchange.cut_dim();
  SMP_REQUIRE(dim < 0 || tensor.size(dim) % size == 0, name, " of ", tensor.sizes(), " among ",
              size, " tensor-parallel ranks: dimension ", dim, " has ", tensor.size(dim),
              " elements, which cannot be divided by ", size,
              "; choose sizes that can, or another tensor_parallel_degree");
}

/// Returns `tensor` with memory: a value that is only promised (smp/wait.h) comes when an operator
/// asks for it, and collectives read memory.
at::Tensor with_memory(const at::Tensor& tensor) {
  return tensor.layout() != at::kStrided || tensor.has_storage() ? tensor : at::alias(tensor);
}

/// Takes the place of the exchange while this rank is alone: returns the result that it would have
/// if all ranks had this tensor, and tells the listener of the traffic.
at::Tensor imagine(const Exchange& exchange, const at::Tensor& tensor, const TensorParallel& own) {
  if (own.traffic_listener()) {
    const auto bytes = static_cast<double>(tensor.numel() * tensor.element_size());
    const bool returns = at::GradMode::is_enabled() && tensor.requires_grad();
    own.traffic_listener()(exchange.traffic(own.size(), bytes),
                           returns ? exchange.traffic_of_dual(own.size(), bytes) : tp::Traffic{});
  }
  return exchange.run_alone(own.size(), tensor);
}

at::Tensor carry_out(Exchange exchange, const at::Tensor& argument, const char* name) {
  auto& own = TensorParallel::current();
  SMP_REQUIRE(argument.defined(), name, " of an undefined tensor");
  const auto tensor = with_memory(argument);
  exchange = exchange.of(tensor.dim());
  check(exchange, tensor, own.size(), name);
  if (own.size() == 1) return tensor;
  if (own.alone()) return imagine(exchange, tensor, own);
  auto* const kept = module::KeptResults::current();
  if (kept != nullptr && kept->replays()) return kept->take().tensors.at(0);
  const auto meeting = own.meet(name);
  auto result = run(exchange, meeting->forward(), *meeting, tensor);
  if (at::GradMode::is_enabled() && tensor.requires_grad()) {
    const auto node = make_node<ExchangeNode>(exchange.dual(), meeting, name);
    node->set_next_edges(torch::autograd::collect_next_edges(tensor));
    torch::autograd::set_history(result, node);
  }
  if (kept != nullptr) kept->keep({{}, {result}});
  return result;
}

}  // namespace

at::Tensor fused_allgather_for_tp(const at::Tensor& tensor, std::int64_t dim) {
  return carry_out(Exchange::gather(dim), tensor, "smp::fused_allgather_for_tp");
}

at::Tensor fwd_allreduce_for_tp(const at::Tensor& tensor) {
  return carry_out(Exchange::sum(), tensor, "smp::fwd_allreduce_for_tp");
}

at::Tensor bwd_allreduce_for_tp(const at::Tensor& tensor) {
  return carry_out(Exchange::identity(), tensor, "smp::bwd_allreduce_for_tp");
}

at::Tensor own_part_for_tp(const at::Tensor& tensor, std::int64_t dim) {
  return carry_out(Exchange::own_part(dim), tensor, "smp::own_part_for_tp");
}

at::Tensor join_parts_for_tp(const at::Tensor& tensor, std::int64_t dim) {
  return carry_out(Exchange::join_parts(dim), tensor, "smp::join_parts_for_tp");
}

at::Tensor scatter_and_merge_for_tp(const at::Tensor& tensor, std::int64_t split_dim,
                                    std::int64_t merge_dim) {
  return carry_out(Exchange::all_to_all(split_dim, merge_dim), tensor,
                   "smp::scatter_and_merge_for_tp");
}

at::Tensor reduce_scatter_for_tp(const at::Tensor& tensor, std::int64_t dim) {
  return carry_out(Exchange::reduce_scatter(dim), tensor, "smp::reduce_scatter_for_tp");
}

}  // namespace smp
