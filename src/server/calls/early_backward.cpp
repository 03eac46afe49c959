// server/calls/early_backward.cpp: a chain of promises is joined, asked for, and left if it did not
// begin.
#include "server/calls/early_backward.h"

#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <utility>

#include "server/calls/remote_call.h"
#include "server/promises/promised_tensor.h"
#include "server/running/turn_taker.h"

namespace smp::server {
namespace {

RemoteCall& node_of(const ChainLink& link) { return static_cast<RemoteCall&>(*link.node); }
OutgoingCall& call_of(const ChainLink& link) { return node_of(link).call(); }

/// True if the microbatch's forward is over on all ranks when that of the chain is: every open call
/// has answered or is in the chain, and executions end after those that they call.
bool nothing_else_runs(const ExecutionScope& scope, const std::vector<ChainLink>& chain) {
  const auto& calls = scope.outgoing().open();
  return std::all_of(calls.begin(), calls.end(), [&](const auto& call) {
    return call->has_answered() ||
           std::any_of(chain.begin(), chain.end(),
                       [&](const ChainLink& link) { return link.node == call->history(); });
  });
}

/// Returns the call that has promised `loss` and the calls that its backward starts; empty if the
/// backward cannot begin without the caller.
std::vector<ChainLink> chain_of(const at::Tensor& loss, const BackwardOptions& options) {
  const bool promised = promise_of(loss).values != nullptr && loss.requires_grad();
  if (!promised || torch::autograd::AnomalyMode::is_enabled()) return {};
  const auto edge = torch::autograd::impl::gradient_edge(loss);
  auto* const node = dynamic_cast<RemoteCall*>(edge.function.get());
  if (node == nullptr || !is_open(node->call().forward())) return {};
  BackwardGraph graph({edge}, {}, true);
  graph.find_older_nodes();
  if (!may_be_ahead(graph.nodes[graph.roots[0]])) return {};
  auto chain = chain_from(graph, graph.roots[0], *node, options);
  if (chain.empty()) chain.push_back({graph.roots[0], node});
  return chain;
}

}  // namespace

std::unique_ptr<EarlyBackward> EarlyBackward::begin(const at::Tensor& loss, double weight,
                                                    const BackwardOptions& options,
                                                    ExecutionScope& scope) {
  auto chain = chain_of(loss, options);
  if (chain.empty() || !nothing_else_runs(scope, chain)) return nullptr;
  std::unique_ptr<EarlyBackward> early(new EarlyBackward(std::move(chain), options));
  const auto output = torch::autograd::impl::gradient_edge(loss).input_nr;
  for (const auto& link : early->chain_) {
    EarlyStart start;
    if (&link == &early->chain_.front()) {
      start.output = static_cast<std::int32_t>(output);
      start.weight = weight;
    }
    node_of(link).start_early(options, link.paths, start);
  }
  scope.work().note();
  return early;
}

/// Adds the requests of all calls to the step's table, so that their names are known before any is
/// sent.
EarlyBackward::EarlyBackward(std::vector<ChainLink> chain, const BackwardOptions& options)
    : chain_(std::move(chain)), first_(owner_of(chain_.front().node)) {
  std::size_t joined = 0;
  try {
    for (; joined < chain_.size(); ++joined) {
      call_of(chain_[joined]).join(options, {}, joined == 0 ? &answered_ : nullptr);
    }
  } catch (...) {
    while (joined > 0) call_of(chain_[--joined]).leave();
    throw;
  }
}

EarlyBackward::~EarlyBackward() {
  if (!decided_) leave();
}

bool EarlyBackward::was_begun() {
  const auto& loss = node_of(chain_.front());
  while (loss.call().backward() == BackwardState::kAsked) {
    await_answer(answered_, loss.wait_reason());
  }
  decided_ = true;
  if (loss.call().backward() == BackwardState::kAnswered) return true;
  leave();
  return false;
}

/// Gives all links up, beginning with the last, because a link may hold those that it leads to.
void EarlyBackward::leave() noexcept {
  for (auto link = chain_.rbegin(); link != chain_.rend(); ++link) call_of(*link).leave();
}

}  // namespace smp::server
