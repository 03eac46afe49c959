// tests/server/backward/executor_testing.cpp
#include "server/backward/executor_testing.h"
#include "module/node_pointer.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <cstring>
#include <stdexcept>
#include <utility>

namespace smp::server::test {
namespace {

constexpr std::size_t kStackBytes = 1 << 20;

fiber::Scheduler& fibers() { return fiber::Scheduler::install(); }

/// Backward of a module execution that lives behind a boundary, on a fiber of its own.
class DelayedNode final : public AsyncNode {
 public:
  DelayedNode(Cut cut, NodePointer<BoundaryInput> boundary, edge_list outputs)
      : cut_(cut), boundary_(std::move(boundary)), outputs_(std::move(outputs)) {}

  void start(variable_list&& gradients, const BackwardOptions& options, Completion done) override {
    auto self = owner_of<DelayedNode>(this);
    fibers().spawn(
        [self, gradients = std::move(gradients), options, done = std::move(done)]() mutable {
          self->answer(std::move(gradients), options, done);
        },
        base::FiberSlots{}, kStackBytes);
  }
  std::string name() const override { return "DelayedNode"; }

 private:
  void answer(variable_list&& gradients, BackwardOptions options, const Completion& done) {
    for (int i = 0; i < cut_.yields; ++i) fibers().yield();
    variable_list result;
    std::exception_ptr error;
    try {
      result = work(std::move(gradients), options);
    } catch (...) {
      error = std::current_exception();
    }
    done(std::move(result), error);
  }

  variable_list work(variable_list&& gradients, BackwardOptions options) {
    if (cut_.failure != nullptr) throw std::runtime_error(cut_.failure);
    auto roots = outputs_;
    for (std::size_t i = 0; i < roots.size(); ++i) {
      if (!gradients[i].defined()) roots[i] = {};
    }
    options.create_graph = false;
    boundary_->captured.clear();
    run_backward(roots, std::move(gradients), options);
    boundary_->captured.resize(num_outputs());
    return boundary_->captured;
  }

  Cut cut_;
  NodePointer<BoundaryInput> boundary_;
  edge_list outputs_;
};

Tensors ones_where_undefined(const Tensors& outputs, Tensors gradients) {
  gradients.resize(outputs.size());
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (!gradients[i].defined()) gradients[i] = at::ones_like(outputs[i]);
  }
  return gradients;
}

}  // namespace

Tensors call_remotely(const Tensors& arguments, const Body& body, Cut cut) {
  Tensors inputs;
  TensorFlags requires_grad;
  for (const auto& argument : arguments) {
    inputs.push_back(argument.detach());
    requires_grad.push_back(argument.requires_grad());
  }
  auto boundary = make_boundary(inputs, requires_grad);
  const auto outputs = body(inputs);
  auto node = make_node<DelayedNode>(cut, boundary, edges_of(outputs));
  node->set_next_edges(torch::autograd::collect_next_edges(arguments));
  Tensors results;
  for (const auto& output : outputs) {
    results.push_back(output.detach());
    if (output.requires_grad()) {
      torch::autograd::set_history(results.back(), node);
    } else {
      node->add_input_metadata(Node::undefined_input{});
    }
  }
  return results;
}

void backward(Engine engine, const Tensors& outputs, Tensors gradients, BackwardOptions options,
              BackwardStatistics* statistics) {
  gradients = ones_where_undefined(outputs, std::move(gradients));
  if (engine == Engine::kStock) {
    torch::autograd::backward(outputs, gradients, options.keep_graph, options.create_graph);
  } else {
    run_backward(edges_of(outputs), gradients, options, {}, nullptr, statistics);
  }
}

Tensors grad(Engine engine, const Tensors& outputs, const Tensors& inputs,
             BackwardOptions options) {
  auto gradients = ones_where_undefined(outputs, {});
  if (engine == Engine::kStock) {
    return torch::autograd::grad(outputs, inputs, gradients, options.keep_graph,
                                 options.create_graph, true);
  }
  options.accumulate = false;
  return run_backward(edges_of(outputs), gradients, options, edges_of(inputs));
}

edge_list edges_of(const Tensors& tensors) {
  edge_list edges;
  for (const auto& tensor : tensors) {
    edges.push_back(torch::autograd::impl::gradient_edge(tensor));
  }
  return edges;
}

Tensors leaves(int count, int seed, int64_t rows, int64_t columns) {
  auto generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(seed));
  Tensors result;
  for (int i = 0; i < count; ++i) {
    result.push_back(at::randn({rows, columns}, generator, at::kDouble).requires_grad_());
  }
  return result;
}

Tensors gradients_of(const Tensors& leaves) {
  Tensors result;
  for (const auto& leaf : leaves) result.push_back(leaf.grad());
  return result;
}

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  if (!a.defined() || !b.defined()) return a.defined() == b.defined();
  if (a.layout() != b.layout() || a.scalar_type() != b.scalar_type()) return false;
  if (a.sizes() != b.sizes()) return false;
  const auto left = a.detach().to_dense().contiguous();
  const auto right = b.detach().to_dense().contiguous();
  return std::memcmp(left.data_ptr(), right.data_ptr(), left.nbytes()) == 0;
}

bool same_bits(const Tensors& a, const Tensors& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!same_bits(a[i], b[i])) return false;
  }
  return true;
}

bool close(const Tensors& a, const Tensors& b, double tolerance) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i].defined() != b[i].defined()) return false;
    if (a[i].defined() && !at::allclose(a[i], b[i], tolerance, tolerance)) return false;
  }
  return true;
}

std::string thrown_by(const std::function<void()>& body) {
  try {
    body();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "nothing was thrown";
}

void let_other_fibers_finish() {
  while (fibers().live_fibers() > 0) fibers().yield();
}

}  // namespace smp::server::test
