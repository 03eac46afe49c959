// server/request_runner.cpp: forward keeps a record, backward walks it.
#include "server/request_runner.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/random.h"
#include "d2d/tensor_data.h"
#include "module/call_handler.h"
#include "module/node_pointer.h"
#include "server/clone_on_write.h"
#include "server/exception_text.h"
#include "server/link_taker.h"
#include "server/output_shapes.h"
#include "server/promised_tensor.h"
#include "server/remote_exception.h"
#include "server/tensor_forms.h"
#include "server/tensor_memory.h"

namespace smp::server {
namespace {

using schedule::Phase;

bool all_defined(const std::vector<at::Tensor>& tensors) {
  return std::all_of(tensors.begin(), tensors.end(),
                     [](const at::Tensor& tensor) { return tensor.defined(); });
}

Note note_of(const TensorFlags& flags) {
  std::string note;
  for (std::size_t i = 0; i < flags.size(); ++i) note += flags[i] ? '\1' : '\0';
  return note;
}

/// An argument comes from a call that ended otherwise than was promised of it, or that hangs on
/// one.
bool is_unusual(const ForwardRequest& request) {
  return std::any_of(request.promised.begin(), request.promised.end(),
                     [](const PromisedInput& input) { return input.unusual; });
}

/// Of a loss: as its caller would make it.
at::Tensor gradient_of_loss(const torch::autograd::Edge& loss, double weight) {
  const at::NoGradGuard no_grad;
  const auto& about = loss.function->input_metadata(loss.input_nr);
  auto gradient = at::ones_symint(about.shape_as_dim_vector(), about.options());
  return weight == 1.0 ? gradient : gradient * weight;
}

/// A joint call is none of the program's: what it runs are calls.
Packet run_call(const CallEntry& entry, RoutedBase& module, Packet& arguments) {
  if (entry.joint) return entry.run(module.smp_module(), arguments);
  const LocalCall bracket(*module::call_handler().get(), module);
  return entry.run(module.smp_module(), arguments);
}

}  // namespace

/// The second part of a backward, and what it needs.
struct RequestRunner::WeightWork {
  Record record;
  GradientAccumulator::Pass sink;
  WeightPart part;
};

RequestRunner::RequestRunner(ServerCore& core, FailureControl& failures)
    : core_(core),
      failures_(failures),
      kept_([this](PpRank to, PassedOn&& message) {
        core_.scopes.recorder.note(RequestKind::kPassedOn, message.caller, message.consumer);
        if (to == core_.port.rank()) return waiting_.take(std::move(message));
        core_.port.send(to, Message(std::move(message)));
      }),
      waiting_([this](WaitingRequests::Forward&& forward,
                      bool input_failed) { start(std::move(forward), input_failed); },
               [this](PpRank caller, const PassOn& message) { kept_.pass_on(caller, message); }),
      promised_(
          [this](BackwardTask&& task, bool input_failed) { start(std::move(task), input_failed); }),
      early_([this](BackwardTask&& task, bool may_run) { start(std::move(task), !may_run); }) {}

/// Sends what `run` returns, or the exception that it throws.
template <class Run>
void RequestRunner::answer(PpRank source, RequestId request, ExecutionScope& scope, Run&& run) {
  core_.scopes.recorder.note(RequestKind::kBegun, source, request);
  core_.step->begins(scope.identity().phase, scope.identity().microbatch);
  const HeldWork::Measured measured(core_.held, *core_.step, scope);
  try {
    if (core_.step->failed()) failures_.throw_aborted();
    auto response = run();
    response.request = request;
    core_.port.send(source, response);
    core_.scopes.recorder.note(RequestKind::kAnswered, source, request);
  } catch (const StepAborted&) {
    throw;
  } catch (...) {
    char who[256] = "";
    scope.describe(who, sizeof who);
    if (scope.identity().phase == Phase::kForward) {
      kept_.fail({source, request});
      core_.accumulator.mark_closed(scope.identity().execution);
      core_.server.wake.signal();
    }
    core_.port.send(source, Message(ErrorResponse{request, failure_of(std::current_exception(),
                                                                      core_.port.rank(), who)}));
  }
}

// ---- forward -----------------------------------------------------------------------------------

void RequestRunner::on_message(PpRank source, ForwardRequest&& request) {
  const auto& step = *core_.step;
  SMP_REQUIRE(request.microbatch < step.task.microbatches, "rank ", core_.port.name(source),
              " runs microbatch ", request.microbatch, ", but this step has ",
              step.task.microbatches, " microbatches on rank ", core_.port.name(),
              "; give the step the same options on every rank");
  static_cast<void>(core_.scopes.modules.module(request.module));
  const auto execution = core_.accumulator.open(
      request.microbatch, request.position.caller.child(request.position.ordinal),
      request.after_first_backward);
  ++core_.counters.executed_forward;
  if (request.keep_outputs) kept_.expect({source, request.request});
  if (request.row != 0) {
    waiting_.add({source, std::move(request), execution}, core_.port.rank());
  } else {
    enter({source, std::move(request), execution});
  }
}

/// Runs it once its microbatch may enter this rank.
void RequestRunner::enter(ForwardTask&& task) {
  if (core_.step->entry.holds(task)) return;
  const auto order = core_.priority(Phase::kForward, task.request.microbatch);
  core_.workers.launch(std::move(task), order);
}

void RequestRunner::start_entering() {
  if (!core_.in_good_step()) return;
  for (auto& task : core_.step->entry.take_entering()) enter(std::move(task));
}

/// Work of the microbatch has ended here, or a record of it is gone.
void RequestRunner::drop(int microbatch) {
  core_.step->entry.drop(microbatch);
  start_entering();
}

void RequestRunner::forward_done(int microbatch) {
  core_.step->entry.forward_done(microbatch);
  start_entering();
}

void RequestRunner::microbatch_done(int microbatch) {
  if (core_.step->weights.done_elsewhere(microbatch)) end_microbatch(microbatch);
}

void RequestRunner::end_microbatch(int microbatch) {
  core_.accumulator.mark_microbatch_done(microbatch);
  core_.step->entry.microbatch_done(microbatch);
  start_entering();
}

/// The answer to a request that was not run.
ErrorResponse RequestRunner::not_run(RequestId request, ModuleId module, std::int32_t microbatch,
                                     const char* what) const {
  return {request,
          {core_.port.rank(),
           base::concat("rank ", core_.port.name(), ", module ", core_.scopes.modules.path(module),
                        ", microbatch ", microbatch, ": not run, because ", what, " that failed"),
           0, true}};
}

void RequestRunner::start(WaitingRequests::Forward&& forward, bool input_failed) {
  if (!core_.in_good_step()) return;
  auto& request = forward.request;
  if (input_failed) {
    kept_.fail({forward.source, request.request});
    core_.accumulator.mark_closed(forward.execution);
    core_.server.wake.signal();
    core_.port.send(forward.source, not_run(request.request, request.module, request.microbatch,
                                            "an argument was promised by a call"));
    early_.ended({forward.source, request.request});
    return waiting_.ended(forward.row);
  }
  enter({forward.source, std::move(request), forward.execution, forward.row});
}

void RequestRunner::on_message(PpRank source, const PassOn& message) {
  kept_.pass_on(source, message);
}

void RequestRunner::on_message(PassedOn&& message) {
  if (message.gradient) return promised_.take(std::move(message));
  waiting_.take(std::move(message));
}

void RequestRunner::on_message(PpRank source, const ReleaseOutputs& message) {
  for (const auto& request : message.requests) kept_.release({source, request});
}

void RequestRunner::end_step() noexcept {
  kept_.clear();
  waiting_.clear();
  promised_.clear();
  early_.clear();
}

void RequestRunner::run(ForwardTask&& task) {
  auto& request = task.request;
  core_.step->entry.keep(request.microbatch);
  core_.held.hold(*core_.step, Phase::kForward, request.microbatch);
  const ExecutionIdentity identity{request.module, request.microbatch, Phase::kForward,
                                   request.after_first_backward, task.execution};
  ExecutionScope scope(core_.scopes, identity, request.position,
                       core_.random_key(request.microbatch));
  answer(task.source, request.request, scope,
         [&] { return run_forward(task.source, request, identity); });
  if (!core_.in_good_step()) return;
  if (request.row != 0) early_.ended({task.source, request.request});
  waiting_.ended(task.row);
  drop(request.microbatch);
}

/// Of this rank's own outputs each request gets one that it may write to.
void RequestRunner::take_promised(ForwardRequest& request) const {
  for (auto& input : request.promised) {
    if (input.source.owner == core_.port.rank()) {
      for (auto& tensor : input.tensors) {
        if (tensor.defined()) tensor = clone_on_write(tensor);
      }
    }
    restore_forms(input.forms, input.tensors);
    request.arguments.tensors.at(input.index) = std::move(input.tensors.at(0));
  }
}

ForwardResponse RequestRunner::run_forward(PpRank source, ForwardRequest& request,
                                           const ExecutionIdentity& identity) {
  auto& module = core_.scopes.modules.module(request.module);
  const auto* entry = find_call(request.call);
  SMP_ASSERT(entry != nullptr && entry->run != nullptr, core_.scopes.modules.path(request.module),
             ", call ", request.call);
  auto& board = core_.scopes.settings;
  const auto& part = board.subtree(module.smp_module());
  const auto settings = board.view_of(part, request.settings);
  auto& scope = *ExecutionScope::current();
  scope.set_settings(settings);
  const ModesScope modes(request.modes);
  restore_forms(request.forms, request.arguments.tensors);
  request.requires_grad.truncate(request.arguments.tensors.size());
  take_promised(request);
  auto inputs = make_boundary(request.arguments.tensors, request.requires_grad);
  inputs->belongs_to({request.module, request.microbatch, core_.step->number});
  const WatchedArguments arguments(request.arguments.tensors);
  auto result = run_module(*entry, module, request.arguments, arguments);
  const auto& left = scope.note_settings();
  // Views may differ and say the same, if it was suspended between a switch and back.
  const bool changed = left != settings && *left != *settings;
  auto response = keep_record(source, std::move(result), std::move(inputs), arguments, request,
                              identity, changed);
  if (changed) response.settings = board.read_all(part);
  return response;
}

/// An exception takes no changed arguments with it. A caller that catches it would go on with the
/// old ones, so it ends the step.
Packet RequestRunner::run_module(const CallEntry& entry, RoutedBase& module, Packet& packet,
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

ForwardResponse RequestRunner::keep_record(PpRank source, Packet&& result,
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
  core_.step->entry.keep(identity.microbatch);
  response.record = core_.step->records.add(
      {std::move(inputs), std::move(outputs), identity.module, identity.microbatch,
       identity.execution, request.modes, request.position, ExecutionScope::current()->settings()});
  if (request.row != 0) {
    early_.note({source, request.request}, response.record, as_promised);
  }
  return response;
}

std::vector<KeptOutput> RequestRunner::kept_outputs(const std::vector<at::Tensor>& tensors,
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

// ---- backward ----------------------------------------------------------------------------------

void RequestRunner::on_message(PpRank source, BackwardRequest&& request) {
  ++core_.counters.executed_backward;
  if (!request.promised.empty()) return promised_.add({source, std::move(request)});
  if (request.early) return early_.add({source, std::move(request)});
  launch({source, std::move(request)});
}

void RequestRunner::launch(BackwardTask&& task) {
  // It may overtake the word that the microbatch's forward is done. smp::grad() may be in the
  // midst of it.
  if (!task.request.only_inputs) {
    core_.accumulator.mark_forward_done(task.request.microbatch);
    forward_done(task.request.microbatch);
  }
  task.request.record = record_of(task);
  const auto order = core_.priority(Phase::kBackward, task.request.microbatch);
  core_.workers.launch(std::move(task), order);
}

RecordId RequestRunner::record_of(const BackwardTask& task) const {
  const auto& early = task.request.early;
  if (!early || !early->forward) return task.request.record;
  return early_.record_of({task.source, early->forward});
}

/// Others need a gradient that is given.
bool RequestRunner::has_one_number(RecordId id, std::int32_t output) const {
  const auto* record = core_.step->records.find(id);
  if (record == nullptr || static_cast<std::size_t>(output) >= record->outputs.size()) return false;
  const auto& edge = record->outputs[static_cast<std::size_t>(output)];
  if (!edge.is_valid()) return false;
  const auto sizes = edge.function->input_metadata(edge.input_nr).shape_as_dim_vector();
  return std::all_of(sizes.begin(), sizes.end(), [](const auto& size) { return size == 1; });
}

/// One whose gradients failed keeps its record: its caller did not get as far as using it.
void RequestRunner::start(BackwardTask&& task, bool input_failed) {
  if (!core_.in_good_step()) return;
  const auto& early = task.request.early;
  if (early && early->output >= 0 && !has_one_number(record_of(task), early->output)) {
    input_failed = true;
  }
  if (!input_failed) return launch(std::move(task));
  const auto* record = core_.step->records.find(record_of(task));
  const auto module = record == nullptr ? kBody : record->module;
  core_.port.send(task.source, not_run(task.request.request, module, task.request.microbatch,
                                       "its gradient comes from a backward"));
  fail_routes(task.source, task.request);
}

void RequestRunner::run(BackwardTask&& task) {
  auto& request = task.request;
  core_.step->entry.keep(request.microbatch);
  core_.held.hold(*core_.step, Phase::kBackward, request.microbatch);
  for (auto& input : request.promised) {
    restore_forms(input.forms, input.tensors);
    request.gradients.at(input.index) = std::move(input.tensors.at(0));
  }
  auto* record = core_.step->records.find(request.record);
  const ExecutionIdentity identity{record == nullptr ? kBody : record->module, request.microbatch,
                                   Phase::kBackward, request.after_first_backward,
                                   record == nullptr ? ExecutionId{} : record->execution};
  // The module below used none of its results: nothing here would have been asked for.
  const bool reached = request.promised.empty() || record == nullptr ||
                       std::any_of(request.gradients.begin(), request.gradients.end(),
                                   [](const at::Tensor& gradient) { return gradient.defined(); });
  auto position = record == nullptr || !reached ? CallPosition() : record->position_of_next_pass();
  ExecutionScope scope(core_.scopes, identity, std::move(position),
                       core_.random_key(request.microbatch));
  std::optional<WeightWork> rest;
  answer(task.source, request.request, scope, [&] {
    try {
      const auto* path = core_.scopes.modules.path(identity.module);
      auto gradients = reached ? run_backward_of(request, scope, rest)
                               : variable_list(record->inputs->num_inputs());
      return response_to(task.source, request, std::move(gradients), path);
    } catch (const StepAborted&) {
      throw;
    } catch (...) {
      fail_routes(task.source, request);
      throw;
    }
  });
  if (rest && rest->part) run_rest(*rest, scope);
  if (core_.in_good_step()) drop(request.microbatch);
}

/// Gradients with a route go there, the others to the caller.
BackwardResponse RequestRunner::response_to(PpRank caller, BackwardRequest& request,
                                            variable_list&& gradients, const char* path) {
  std::string routed(request.routes.empty() ? 0 : gradients.size(), '\0');
  for (auto& routes = request.routes; !routes.empty(); routes.pop_back()) {
    const auto& route = routes.back();
    PassedOn message{caller, route.consumer, route.index};
    message.tensors.push_back(std::exchange(gradients.at(route.gradient), at::Tensor()));
    if (message.tensors[0].defined()) routed[route.gradient] = '\1';
    message.forms = take_forms(message.tensors, "argument gradient", path, /*layout=*/false);
    send_along(route, std::move(message));
  }
  BackwardResponse response;
  response.gradients = std::move(gradients);
  response.forms = take_forms(response.gradients, "argument gradient", path, /*layout=*/false);
  response.routed = std::move(routed);
  return response;
}

void RequestRunner::send_along(const GradientRoute& route, PassedOn&& message) {
  message.gradient = true;
  core_.scopes.recorder.note(RequestKind::kPassedOn, message.caller, message.consumer);
  if (route.to != core_.port.rank()) return core_.port.send(route.to, Message(std::move(message)));
  // As it would arrive elsewhere: strides decide in which order sums are taken.
  for (auto& tensor : message.tensors) {
    if (tensor.defined()) tensor = clone_on_write(d2d::contiguous_data(tensor));
  }
  promised_.take(std::move(message));
}

void RequestRunner::fail_routes(PpRank caller, const BackwardRequest& request) {
  for (const auto& route : request.routes) {
    send_along(route, {caller, route.consumer, route.index, /*failed=*/true});
  }
}

/// Kept for another backward if the request says so.
Record RequestRunner::take_record(const BackwardRequest& request) const {
  auto& records = core_.step->records;
  const auto* record = records.find(request.record);
  SMP_REQUIRE(
      record != nullptr,
      "Trying to backward through the graph a second time: the graph of a remote module was "
      "freed by the first backward; keep it with retain_graph");
  if (request.keep_graph) return *record;
  auto taken = *records.take(request.record);
  core_.step->entry.drop(taken.microbatch);  // this pass keeps the microbatch meanwhile
  return taken;
}

/// Those of the forward, unless the caller has frozen or freed parameters since.
SettingsBoard::View RequestRunner::settings_of(const BackwardRequest& request,
                                               const Record& record) {
  if (!request.settings) return record.settings;
  auto& board = core_.scopes.settings;
  const auto& module = core_.scopes.modules.module(record.module);
  const auto& part = board.subtree(const_cast<RoutedBase&>(module).smp_module());
  return board.view_of(part, *request.settings);
}

variable_list RequestRunner::run_backward_of(BackwardRequest& request, ExecutionScope& scope,
                                             std::optional<WeightWork>& rest) {
  restore_forms(request.forms, request.gradients);
  const auto record = take_record(request);
  if (request.early && request.early->output >= 0) {
    const auto output = static_cast<std::size_t>(request.early->output);
    request.gradients.at(output) =
        gradient_of_loss(record.outputs.at(output), request.early->weight);
  }
  if (core_.accumulator.after_first_backward(record.execution)) scope.set_after_first_backward();
  const ModesScope modes(record.modes.without_autocast());
  scope.set_settings(settings_of(request, record));
  edge_list roots;
  variable_list gradients;
  for (std::size_t i = 0; i < record.outputs.size(); ++i) {
    if (!record.outputs[i].is_valid() || !request.gradients.at(i).defined()) continue;
    roots.push_back(record.outputs[i]);
    gradients.push_back(std::move(request.gradients[i]));
  }
  if (request.only_inputs) {
    return gradients_of_inputs(record, roots, std::move(gradients), request.keep_graph);
  }
  GradientAccumulator::Pass sink(core_.accumulator, record.execution,
                                 scope.identity().after_first_backward);
  auto& inputs = *record.inputs;
  auto options = pass_options(request.keep_graph, core_);
  options.random_key = scope.random_key_of_hooks();
  options.boundary = &inputs;
  if (core_.step->progress.splits_backward(record.microbatch)) {
    rest.emplace(WeightWork{record, sink, {}});
    rest->part = run_input_part(roots, std::move(gradients), options, &rest->sink);
    if (rest->part) core_.step->weights.begin(record.microbatch);
  } else {
    run_backward(roots, std::move(gradients), options, {}, &sink);
  }
  if (!rest || !rest->part) core_.accumulator.close(record.execution);
  auto captured = std::exchange(inputs.captured, {});
  captured.resize(inputs.num_inputs());
  return captured;
}

/// When nothing is left that others wait for. Its failure ends the step: the caller has its answer.
void RequestRunner::run_rest(WeightWork& rest, ExecutionScope& scope) try {
  const auto microbatch = rest.record.microbatch;
  set_priority(core_.priority(Phase::kWeightGradient, microbatch));
  core_.turns.give_way();
  core_.held.hold(*core_.step, Phase::kWeightGradient, microbatch);
  if (core_.step->failed()) return;
  scope.set_phase(Phase::kWeightGradient);
  core_.step->begins(Phase::kWeightGradient, microbatch);
  const HeldWork::Measured measured(core_.held, *core_.step, scope);
  const ModesScope modes(rest.record.modes.without_autocast());
  rest.part.run();
  core_.accumulator.close(rest.record.execution);
  if (core_.step->weights.end(microbatch)) end_microbatch(microbatch);
  core_.server.wake.signal();
} catch (const StepAborted&) {
  throw;
} catch (...) {
  char who[256] = "";
  scope.describe(who, sizeof who);
  failures_.fail_step(
      remote_exception(failure_of(std::current_exception(), core_.port.rank(), who)));
}

/// Of smp::grad(): only what leads to the boundary is executed. A record that is freed is closed.
variable_list RequestRunner::gradients_of_inputs(const Record& record, const edge_list& roots,
                                                 variable_list&& gradients, bool keep_graph) {
  auto options = pass_options(keep_graph, core_);
  options.random_key = ExecutionScope::current()->random_key_of_hooks();
  options.accumulate = false;
  edge_list inputs;
  for (std::uint32_t i = 0; i < record.inputs->num_inputs(); ++i) {
    inputs.emplace_back(record.inputs, i);
  }
  if (inputs.empty()) return {};
  auto captured = run_backward(roots, std::move(gradients), options, inputs);
  if (!keep_graph) core_.accumulator.close(record.execution);
  return captured;
}

std::vector<std::pair<std::int32_t, ModuleId>> RequestRunner::backwards_waiting() const {
  std::vector<std::pair<std::int32_t, ModuleId>> found;
  for (const auto* task : promised_.waiting()) {
    const auto* record = core_.step->records.find(record_of(*task));
    if (record != nullptr) found.emplace_back(task->request.microbatch, record->module);
  }
  return found;
}

// ---- records that nobody wants -----------------------------------------------------------------

void RequestRunner::on_message(ReleaseRecord&& message) {
  core_.step->released.push_back(message.record);
  core_.server.wake.signal();
}

void RequestRunner::free_released() {
  for (const auto id : std::exchange(core_.step->released, {})) {
    if (const auto record = core_.step->records.take(id)) {
      core_.accumulator.mark_closed(record->execution);
      drop(record->microbatch);
    }
  }
}

}  // namespace smp::server
