// server/requests/forward_requests.cpp: forward keeps a record, which backward_requests.cpp walks.
#include "server/requests/forward_requests.h"

#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "module/call_handler.h"
#include "server/promises/promised_tensor.h"
#include "server/protocol/exception_text.h"
#include "server/protocol/flag_note.h"
#include "server/protocol/remote_exception.h"
#include "server/requests/link_taker.h"
#include "server/values/clone_on_write.h"
#include "server/values/output_shapes.h"
#include "server/values/tensor_forms.h"
#include "server/values/tensor_memory.h"

namespace smp::server {
namespace {

using schedule::Phase;

bool all_defined(const std::vector<at::Tensor>& tensors) {
  return std::all_of(tensors.begin(), tensors.end(),
                     [](const at::Tensor& tensor) { return tensor.defined(); });
}

/// True if an argument comes from a call that ended otherwise than was promised, or from one whose
/// arguments did.
bool is_unusual(const ForwardRequest& request) {
  return std::any_of(request.promised.begin(), request.promised.end(),
                     [](const PromisedInput& input) { return input.unusual; });
}

/// Runs the call. A joint call has no bracket of its own: it is no call of the program, but the
/// modules that it runs are.
Packet run_call(const CallEntry& entry, RoutedBase& module, Packet& arguments) {
  if (entry.joint) return entry.run(module, arguments);
  const LocalCall bracket(*module::call_handler().get(), module);
  return entry.run(module, arguments);
}

}  // namespace

ForwardRequests::ForwardRequests(ServerCore& core, FailureControl& failures)
    : core_(core),
      failures_(failures),
      answer_(core, failures),
      kept_([this](PpRank to, PassedOn&& message) {
        if (!message.ahead) {
          core_.scopes.recorder.note(RequestKind::kPassedOn, message.caller, message.consumer);
        }
        if (to == core_.port.rank()) return core_.step->admission.take(std::move(message));
        core_.port.send(to, Message(std::move(message)));
      }) {}

void ForwardRequests::on_message(PpRank source, ForwardRequest&& request) {
  auto& step = *core_.step;
  SMP_REQUIRE(request.microbatch < step.task.microbatches, "rank ", core_.port.name(source),
              " runs microbatch ", request.microbatch, ", but this step has ",
              step.task.microbatches, " microbatches on rank ", core_.port.name(),
              "; give the step the same options on every rank");
  static_cast<void>(core_.scopes.modules.module(request.module));
  step.loss_weights.at(static_cast<std::size_t>(request.microbatch)) = request.weight;
  const auto execution = core_.accumulator.open(
      request.microbatch, request.position.caller.child(request.position.ordinal),
      request.after_first_backward);
  ++core_.counters.executed_forward;
  if (request.keep_outputs) kept_.expect({source, request.request}, request.ahead);
  core_.step->admission.add(ForwardTask{source, std::move(request), execution});
}

void ForwardRequests::start(ForwardTask&& task, bool input_failed) {
  if (!core_.in_good_step()) return;
  const auto& request = task.request;
  if (!input_failed) {
    const auto order = core_.priority(Phase::kForward, request.microbatch);
    return core_.workers.launch(std::move(task), order);
  }
  failed({task.source, request.request}, task.execution);
  answer_.send_not_run(task.source, request.request, request.module, request.microbatch,
                       "an argument was promised by a call");
  core_.step->admission.forward_ended(task.source, request);
}

/// Notes that a request has failed: it leaves no outputs and no graph.
void ForwardRequests::failed(const RequestName& name, ExecutionId execution) {
  kept_.fail(name);
  core_.accumulator.mark_closed(execution);
  core_.server.wake.signal();
}

void ForwardRequests::release(PpRank caller, const std::vector<RequestId>& requests) {
  for (const auto& request : requests) kept_.release({caller, request});
}

void ForwardRequests::run(ForwardTask&& task) {
  auto& request = task.request;
  auto& admission = core_.step->admission;
  admission.keep(request.microbatch);
  admission.hold(Phase::kForward, request.microbatch);
  const ExecutionIdentity identity{request.module, request.microbatch, Phase::kForward,
                                   request.after_first_backward, task.execution};
  ExecutionScope scope(core_.scopes, identity, request.position,
                       core_.random_key(request.microbatch));
  answer_.send(
      task.source, request.request, scope,
      [&] { return run_forward(task.source, request, identity); },
      [&] {
        failed({task.source, request.request}, task.execution);
      });
  if (!core_.in_good_step()) return;
  admission.forward_ended(task.source, request);
  admission.drop(request.microbatch);
}

/// Puts the promised tensors that have come among the arguments. Outputs of this rank, and tensors
/// that several requests take, are cloned on write, so that each request may write to them.
void ForwardRequests::take_promised(PpRank caller, ForwardRequest& request) const {
  for (auto& input : request.promised) {
    if (input.ahead) {
      core_.scopes.recorder.note(RequestKind::kTook, caller, input.source.request);
    }
    if (input.source.owner == core_.port.rank() || input.shared) {
      for (auto& tensor : input.tensors) {
        if (tensor.defined()) tensor = clone_on_write(tensor);
      }
    }
    restore_forms(input.forms, input.tensors);
    request.arguments.tensors.at(input.index) = std::move(input.tensors.at(0));
  }
}

ForwardResponse ForwardRequests::run_forward(PpRank source, ForwardRequest& request,
                                             const ExecutionIdentity& identity) {
  auto& module = core_.scopes.modules.module(request.module);
  const auto* entry = find_call(request.call);
  SMP_ASSERT(entry != nullptr && entry->run != nullptr, core_.scopes.modules.path(request.module),
             ", call ", request.call);
  auto& board = core_.scopes.settings;
  const auto& part = board.flags().subtree(module.smp_module());
  const auto settings = board.view_of(part, request.settings);
  auto& scope = *ExecutionScope::current();
  scope.settings().set(settings);
  const ModesScope modes(request.modes);
  restore_forms(request.forms, request.arguments.tensors);
  request.requires_grad.truncate(request.arguments.tensors.size());
  take_promised(source, request);
  auto inputs = make_boundary(request.arguments.tensors, request.requires_grad);
  inputs->belongs_to({request.module, request.microbatch, core_.step->number});
  const WatchedArguments arguments(request.arguments.tensors);
  auto result = run_module(*entry, module, request.arguments, arguments);
  const auto& left = scope.settings().note();
  // Views may differ and say the same, if it was suspended between a switch and back.
  const bool changed = left != settings && *left != *settings;
  auto response = keep_record(source, std::move(result), std::move(inputs), arguments, request,
                              identity, changed);
  if (changed) response.settings = board.read_all(part);
  return response;
}

/// Runs the module until all of its calls have ended. If it throws after it has changed arguments
/// in place, the step fails: a caller that catches the exception would go on with the old values.
Packet ForwardRequests::run_module(const CallEntry& entry, RoutedBase& module, Packet& packet,
                                   const WatchedArguments& arguments) try {
  Packet result;
  ExecutionScope::current()->run([&] { result = run_call(entry, module, packet); });
  for (auto& tensor : result.tensors) tensor = fetched(tensor);
  return result;
} catch (const StepAborted&) {
  throw;
} catch (...) {
  if (!arguments.any_changed()) throw;
  char who[256] = "";
  ExecutionScope::current()->describe(who, sizeof who);
  auto failure = failure_of(std::current_exception(), core_.port.rank(), who);
  failure.text +=
      " (thrown after the module had changed its arguments in place, which its caller on another "
      "rank does not see; throw before that, or place the module with its caller)";
  failures_.fail_step(remote_exception(failure));
  failures_.throw_aborted();
}

ForwardResponse ForwardRequests::keep_record(PpRank source, Packet&& result,
                                             NodePointer<BoundaryInput> inputs,
                                             const WatchedArguments& arguments,
                                             const ForwardRequest& request,
                                             const ExecutionIdentity& identity,
                                             bool changed_settings) {
  const char* const path = core_.scopes.modules.path(request.module);
  ForwardResponse response;
  response.result = std::move(result);
  auto& tensors = response.result.tensors;
  const auto outputs_themselves = request.keep_outputs ? tensors : std::vector<at::Tensor>();
  auto linked = take_links(tensors, arguments, path, request.modes.grad);
  response.links = std::move(linked.note);
  response.hooked = arguments.hooked();
  response.inner = note_of(linked.inner);
  edge_list outputs;
  outputs.reserve(tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto& tensor = i < linked.recorded.size() ? linked.recorded[i] : tensors[i];
    const bool differentiable = tensor.defined() && tensor.requires_grad();
    response.requires_grad.push_back(differentiable);
    outputs.push_back(differentiable ? torch::autograd::impl::gradient_edge(tensor)
                                     : torch::autograd::Edge());
  }
  response.forms = take_forms(tensors, "output", path);
  while (response.requires_grad.size() < tensors.size()) response.requires_grad.push_back(false);
  copy_what_others_hold(tensors);
  const bool as_promised = response.requires_grad.any() && response.links.empty() &&
                           response.hooked.empty() && !changed_settings && !is_unusual(request);
  if (request.keep_outputs) {
    kept_.keep({source, request.request}, kept_outputs(outputs_themselves, path), !as_promised);
    if (request.withhold_outputs && response.links.empty() && all_defined(outputs_themselves)) {
      response.withheld = take_shapes(outputs_themselves, response.requires_grad);
      response.forms = {};
      tensors.clear();
    }
  }
  const bool differentiable = response.requires_grad.any();
  // What is withheld says it itself.
  if (!response.withheld.empty()) response.requires_grad.truncate(0);
  if (!differentiable) {
    core_.accumulator.close(identity.execution);
    return response;
  }
  core_.accumulator.recorded(identity.execution, outputs);
  core_.step->admission.keep(identity.microbatch);
  response.record =
      core_.step->records.add({std::move(inputs), std::move(outputs), identity.module,
                               identity.microbatch, identity.execution, request.modes,
                               request.position, ExecutionScope::current()->settings().view()});
  if (request.row != 0) {
    core_.step->admission.note_record({source, request.request}, response.record, as_promised);
  }
  return response;
}

std::vector<KeptOutput> ForwardRequests::kept_outputs(const std::vector<at::Tensor>& tensors,
                                                      const char* path) const {
  std::vector<KeptOutput> kept;
  for (const auto& tensor : tensors) {
    auto& output = kept.emplace_back();
    output.tensors.push_back(tensor);
    output.forms = take_forms(output.tensors, "output", path);
    for (auto& plain : output.tensors) {
      if (plain.defined()) plain = clone_on_write(plain);
    }
  }
  return kept;
}

}  // namespace smp::server
