// server/engine/body_backward.cpp: the forward of the microbatch ends, the schedule is asked, a
// pass runs.
#include "server/engine/body_backward.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/variable.h>

#include <utility>

#include "base/check.h"
#include "server/promises/promised_tensor.h"
#include "server/running/inside_node.h"

namespace smp::server {
namespace {

using schedule::Phase;

}  // namespace

BodyBackward::WeightedRoots BodyBackward::weighted(const std::vector<at::Tensor>& roots,
                                                   const std::vector<at::Tensor>& gradients,
                                                   double weight) {
  const at::NoGradGuard no_grad;
  WeightedRoots made;
  for (std::size_t i = 0; i < roots.size(); ++i) {
    const auto root = fetched(roots[i]);
    SMP_REQUIRE(root.defined() && root.requires_grad(), "model.backward(): tensor ", i,
                " does not require grad; nothing in it depends on a parameter (or grad mode is "
                "off)");
    const bool given = i < gradients.size() && gradients[i].defined();
    SMP_REQUIRE(given || root.numel() == 1, "model.backward(): tensor ", i, " has shape ",
                root.sizes(), "; reduce it to one number or pass a gradient");
    auto gradient = given ? fetched(gradients[i]) : at::ones_like(root);
    made.gradients.push_back(weight == 1.0 ? std::move(gradient) : gradient * weight);
    made.edges.push_back(torch::autograd::impl::gradient_edge(root));
  }
  return made;
}

void BodyBackward::run(const std::vector<at::Tensor>& roots,
                       const std::vector<at::Tensor>& gradients, bool keep_graph) {
  auto& scope = require_body();
  SMP_REQUIRE(gradients.empty() || gradients.size() == roots.size(), "model.backward() with ",
              roots.size(), " tensors and ", gradients.size(), " gradients");
  if (core_.step->failed()) failures_.throw_aborted();
  const int microbatch = scope.identity().microbatch;
  const double weight = core_.step->loss_weights.at(static_cast<std::size_t>(microbatch));
  const auto early = gradients.empty() && !keep_graph ? begin_early(roots, weight, scope) : nullptr;
  auto [edges, weights] = end_forward(roots, gradients, weight, early.get());
  if (!scope.identity().after_first_backward) first_backward(scope.identity(), edges);
  const auto forward_priority = schedule::without_passing_on(fiber::current_fiber()->priority);
  set_priority(core_.priority(Phase::kBackward, microbatch));
  scope.set_phase(Phase::kBackward);
  core_.step->begins(Phase::kBackward, microbatch);
  if (early != nullptr) static_cast<void>(early->was_begun());
  run_pass(scope.identity(), edges, std::move(weights), keep_graph);
  scope.set_after_first_backward();
  scope.set_phase(Phase::kForward);
  set_priority(forward_priority);
}

ExecutionScope& BodyBackward::require_body() const {
  auto* scope = ExecutionScope::current();
  // Without the rank: what all ranks say alike is printed once.
  SMP_REQUIRE(core_.step != nullptr && scope != nullptr && scope->identity().module == kBody &&
                  core_.port.is_first(),
              "model.backward() outside of a step; call it in the step's body, on its own thread");
  SMP_REQUIRE(!inside_node(), "rank ", core_.port.name(),
              ": model.backward() was called inside the backward of an autograd node, which cannot "
              "wait for other ranks; call it in the step's body itself");
  return *scope;
}

/// Begins the backward of a promised loss early; nullptr if it has to wait, for example because the
/// schedule has other work first.
std::unique_ptr<EarlyBackward> BodyBackward::begin_early(const std::vector<at::Tensor>& roots,
                                                         double weight,
                                                         ExecutionScope& scope) const {
  const auto& body = scope.identity();
  if (roots.size() != 1 || !roots[0].defined() || body.after_first_backward) return nullptr;
  if (!core_.step->progress.gate_would_open(body.microbatch)) return nullptr;
  const auto options = pass_options(/*keep_graph=*/false, core_);
  auto early = EarlyBackward::begin(roots[0], weight, options, scope);
  if (early != nullptr) ++core_.counters.early;
  return early;
}

/// Suspends until all calls of the body have ended, so that the autograd graph is complete. If the
/// backward was begun early, an error fails the step, because the body cannot handle it any more.
BodyBackward::WeightedRoots BodyBackward::end_forward(const std::vector<at::Tensor>& roots,
                                                      const std::vector<at::Tensor>& gradients,
                                                      double weight, EarlyBackward* early) const {
  try {
    ExecutionScope::current()->outgoing().finish();
    return weighted(roots, gradients, weight);
  } catch (const StepAborted&) {
    throw;
  } catch (...) {
    if (early != nullptr && early->was_begun()) failures_.fail_step(std::current_exception());
    throw;
  }
}

/// Notes that the forward of this microbatch is over, and suspends until the schedule lets its
/// backward begin.
void BodyBackward::first_backward(const ExecutionIdentity& body, const edge_list& roots) const {
  core_.accumulator.recorded(body.execution, roots);
  forward_done_(body.microbatch);
  auto& step = *core_.step;
  step.admission.pass_gate(body.microbatch);
  if (step.failed()) failures_.throw_aborted();
}

/// Runs the backward pass. An error fails the step even if the body handles it, because a part of
/// the gradients is summed already.
void BodyBackward::run_pass(const ExecutionIdentity& body, const edge_list& roots,
                            variable_list gradients, bool keep_graph) const {
  GradientAccumulator::Pass sink(core_.accumulator, body.execution, body.after_first_backward);
  try {
    run_backward(roots, std::move(gradients), pass_options(keep_graph, core_), {}, &sink);
    core_.accumulator.close(body.execution);
  } catch (const StepAborted&) {
    throw;
  } catch (...) {
    failures_.fail_step(std::current_exception());
    throw;
  }
}

}  // namespace smp::server
