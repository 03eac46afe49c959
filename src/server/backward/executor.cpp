// server/backward/executor.cpp: passes, whole and in two parts.
#include "server/backward/executor.h"

#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/csrc/autograd/engine.h>

#include <utility>

#include "server/backward/backward_pass.h"

namespace smp::server {
namespace {

void check_captures(const edge_list& captures, GradientSink& sink) {
  for (const auto& edge : captures) {
    auto* const leaf = edge.is_valid() ? as_leaf(*edge.function) : nullptr;
    if (leaf != nullptr) sink.check_capture(*leaf);
  }
}

}  // namespace

variable_list run_backward(const edge_list& roots, variable_list gradients,
                           const BackwardOptions& options, const edge_list& captures,
                           GradientSink* sink, BackwardStatistics* statistics) {
  torch::autograd::validate_outputs(roots, gradients, [](const std::string& text) { return text; });
  if (sink != nullptr) check_captures(captures, *sink);
  BackwardStatistics unused;
  auto& counts = statistics == nullptr ? unused : *statistics;
  counts = {};
  const at::AutoGradMode mode(options.create_graph);
  return BackwardPass(roots, captures, options, sink, counts).run(roots, std::move(gradients));
}

struct WeightPart::State {
  State(const edge_list& with_roots, const BackwardOptions& options, GradientSink* sink)
      : roots(with_roots), pass(roots, {}, options, sink, statistics) {}
  const edge_list roots;  // hold the graph
  BackwardStatistics statistics;
  BackwardPass pass;
};

WeightPart::WeightPart() noexcept = default;
WeightPart::WeightPart(std::unique_ptr<State> state) noexcept : state_(std::move(state)) {}
WeightPart::WeightPart(WeightPart&&) noexcept = default;
WeightPart& WeightPart::operator=(WeightPart&&) noexcept = default;
WeightPart::~WeightPart() = default;

void WeightPart::run() {
  const at::AutoGradMode no_grad(false);
  const auto state = std::move(state_);
  state->pass.run_put_off();
}

WeightPart run_input_part(const edge_list& roots, variable_list gradients,
                          const BackwardOptions& options, GradientSink* sink) {
  // A trace of the forward is printed for the node that throws, by the pass that made it throw.
  if (options.keep_graph || options.border != nullptr ||
      torch::autograd::AnomalyMode::is_enabled()) {
    run_backward(roots, std::move(gradients), options, {}, sink);
    return {};
  }
  torch::autograd::validate_outputs(roots, gradients, [](const std::string& text) { return text; });
  const at::AutoGradMode no_grad(false);
  auto state = std::make_unique<WeightPart::State>(roots, options, sink);
  state->pass.put_off_what_only_leaves_need();
  state->pass.run(roots, std::move(gradients));
  if (!state->pass.has_put_off()) return {};
  return WeightPart(std::move(state));
}

}  // namespace smp::server
