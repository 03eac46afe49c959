// server/call_router.cpp: a call becomes a request, and its answer gets a history.
#include "server/call_router.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/module.h>

#include <exception>
#include <new>
#include <utility>

#include "base/check.h"
#include "server/remote_call.h"

namespace smp::server {
namespace {

/// The answer to a forward request, awaited on the caller's stack.
class AwaitedResult final : public ResponseTarget {
 public:
  std::optional<ForwardResponse> response;
  std::optional<Failure> failure;

  void wait(const fiber::WaitReason& reason) { await_answer(arrived_, reason); }

 private:
  void on_forward(ForwardResponse&& answer) noexcept override {
    response = std::move(answer);
    arrived_.signal();
  }
  void on_backward(BackwardResponse&&) noexcept override { arrived_.signal(); }
  void on_error(Failure&& error) noexcept override {
    failure = std::move(error);
    arrived_.signal();
  }
  void on_abort() noexcept override { arrived_.signal(); }

  fiber::Event arrived_;
};

/// A request whose answer may come as long as this lives, on the caller's stack.
class OpenRequest {
 public:
  OpenRequest(ServerCore& core, ResponseTarget& target)
      : core_(core), id_(core.step->requests.add(&target)) {}
  ~OpenRequest() { core_.step->requests.take(id_); }
  OpenRequest(const OpenRequest&) = delete;
  OpenRequest& operator=(const OpenRequest&) = delete;
  RequestId id() const noexcept { return id_; }

 private:
  ServerCore& core_;
  RequestId id_;
};

ModuleId id_of(const RoutedBase& module) { return ModuleId{module.smp_place.index}; }

}  // namespace

// ---- calls that run here
// --------------------------------------------------------------------------

CallRouter::Where CallRouter::where(const RoutedBase& module) {
  const auto& place = module.smp_place;
  if (!place.placed()) return Where::kPlain;
  const bool here = place.owner == core_.port.rank();
  if (core_.step == nullptr || ExecutionScope::current() == nullptr) {
    SMP_REQUIRE(here, "rank ", core_.port.name(), ": module '", place.path, "' lives on rank ",
                core_.port.name(place.owner),
                " and was called outside of a step; call the model in the body of smp::step");
    return Where::kPlain;
  }
  return here ? Where::kHere : Where::kRemote;
}

bool CallRouter::joins(const RoutedBase& first, const RoutedBase& next) {
  return first.smp_place.owner == next.smp_place.owner;
}

void CallRouter::enter(RoutedBase& module, Space& space) {
  if (!inside_node()) core_.turns.take_turn();
  new (space.bytes) CallScope(*ExecutionScope::current(), id_of(module));
}

void CallRouter::leave(Space& space) noexcept {
  std::launder(reinterpret_cast<CallScope*>(space.bytes))->~CallScope();
}

// ---- calls that leave
// -----------------------------------------------------------------------------

std::optional<Packet> CallRouter::call(RoutedBase& module, const CallEntry& entry, PpRank owner,
                                       Packet&& arguments, std::uint32_t calls) {
  if (failures_.empty_because_unwinding()) return std::nullopt;
  SMP_REQUIRE(!inside_node(), "rank ", core_.port.name(), ": module '", module.smp_place.path,
              "' lives on rank ", core_.port.name(owner),
              " and was called inside the backward of an autograd node, which cannot wait for it; "
              "call it in a tensor hook, or place it on this rank");
  ++core_.counters.forward_requests;
  auto request = forward_request(module, entry, std::move(arguments), calls);
  AwaitedResult awaited;
  const OpenRequest open(core_, awaited);
  request.request = open.id();
  core_.port.send(owner, request);
  awaited.wait({"forward", core_.scopes.modules.path(request.module),
                core_.port.name(owner).value(), request.microbatch});
  if (awaited.failure) {
    if (failures_.swallow_while_unwinding()) return std::nullopt;
    throw RemoteError(awaited.failure->text, awaited.failure->rank.value());
  }
  if (!awaited.response) {
    if (failures_.swallow_while_unwinding()) return std::nullopt;
    failures_.throw_aborted();
  }
  attach_history(*awaited.response, owner, request.module, request.arguments.tensors);
  return std::move(awaited.response->result);
}

ForwardRequest CallRouter::forward_request(RoutedBase& module, const CallEntry& entry,
                                           Packet&& arguments, std::uint32_t calls) const {
  auto& scope = *ExecutionScope::current();
  ForwardRequest request;
  request.module = id_of(module);
  request.call = entry.key;
  request.microbatch = scope.identity().microbatch;
  request.position = scope.next_call(calls);
  request.after_first_backward = scope.identity().after_first_backward;
  request.training = module.smp_module().is_training();
  request.frozen_hash = core_.frozen_hash;
  request.modes = ExecutionModes::capture();
  for (const auto& tensor : arguments.tensors) {
    request.requires_grad.push_back(request.modes.grad && tensor.defined() &&
                                    tensor.requires_grad());
  }
  request.arguments = std::move(arguments);
  return request;
}

void CallRouter::attach_history(ForwardResponse& response, PpRank owner, ModuleId module,
                                const std::vector<at::Tensor>& arguments) {
  if (!response.record) return;
  auto node = c10::make_intrusive<RemoteCall>(*this, owner, response.record, module);
  node->set_next_edges(torch::autograd::collect_next_edges(arguments));
  auto& tensors = response.result.tensors;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (response.requires_grad[i]) {
      torch::autograd::set_history(tensors[i], node);
    } else {
      node->add_input_metadata(Node::undefined_input{});
    }
  }
}

// ---- answers
// --------------------------------------------------------------------------------------

void CallRouter::on_message(ForwardResponse&& response) {
  if (const auto target = core_.step->requests.take(response.request)) {
    (*target)->on_forward(std::move(response));
  }
}

void CallRouter::on_message(BackwardResponse&& response) {
  if (const auto target = core_.step->requests.take(response.request)) {
    (*target)->on_backward(std::move(response));
  }
}

void CallRouter::on_message(ErrorResponse&& response) {
  if (const auto target = core_.step->requests.take(response.request)) {
    (*target)->on_error(std::move(response.failure));
  }
}

// ---- backward of remote calls
// ---------------------------------------------------------------------

void CallRouter::request_backward(PpRank owner, BackwardRequest&& request, ResponseTarget& target) {
  if (core_.step->failed()) return target.on_abort();
  ++core_.counters.backward_requests;
  request.request = core_.step->requests.add(&target);
  try {
    core_.port.send(owner, request);
  } catch (...) {
    core_.step->requests.take(request.request);
    throw;
  }
}

void CallRouter::release(PpRank owner, std::int64_t step, RecordId record) {
  if (!core_.in_good_step() || step != core_.step->number) return;
  to_release_.push_back({owner, record});
  if (core_.port.receiving()) {
    core_.server.wake.signal();
  } else {
    flush_releases();
  }
}

void CallRouter::flush_releases() {
  for (const auto& [owner, record] : std::exchange(to_release_, {})) {
    if (core_.in_good_step()) core_.port.send(owner, ReleaseRecord{record});
  }
}

}  // namespace smp::server
