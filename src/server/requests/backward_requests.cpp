// server/requests/backward_requests.cpp: walks the records that forward_requests.cpp keeps.
#include "server/requests/backward_requests.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "d2d/tensors/tensor_data.h"
#include "server/protocol/exception_text.h"
#include "server/protocol/remote_exception.h"
#include "server/values/clone_on_write.h"
#include "server/values/tensor_forms.h"

namespace smp::server {
namespace {

using schedule::Phase;

/// Makes the gradient of a loss as its caller would: ones of the loss's shape and options, times
/// `weight`.
at::Tensor gradient_of_loss(const torch::autograd::Edge& loss, double weight) {
  const at::NoGradGuard no_grad;
  const auto& about = loss.function->input_metadata(loss.input_nr);
  auto gradient = at::ones_symint(about.shape_as_dim_vector(), about.options());
  return weight == 1.0 ? gradient : gradient * weight;
}

}  // namespace

/// The second part of a backward, with everything that it needs.
struct BackwardRequests::WeightWork {
  Record record;
  GradientAccumulator::Pass sink;
  WeightPart part;
};

void BackwardRequests::on_message(PpRank source, BackwardRequest&& request) {
  ++core_.counters.executed_backward;
  const auto module = module_of(request.record);
  core_.step->admission.add(BackwardTask{source, std::move(request)}, module);
}

/// kBody: the record is gone, or not known.
ModuleId BackwardRequests::module_of(RecordId id) const {
  const auto* record = core_.step->records.find(id);
  return record == nullptr ? kBody : record->module;
}

void BackwardRequests::launch(BackwardTask&& task) {
  // It may overtake the word that the microbatch's forward is done. smp::grad() may be in the
  // midst of it; and where the body runs it says so itself, with what it has recorded: a loss whose
  // backward has begun early may come back here before.
  if (!task.request.only_inputs && !core_.port.is_first()) {
    core_.accumulator.mark_forward_done(task.request.microbatch);
    core_.step->admission.forward_done(task.request.microbatch);
  }
  const auto order = core_.priority(Phase::kBackward, task.request.microbatch);
  core_.workers.launch(std::move(task), order);
}

/// Others need a gradient that is given.
bool BackwardRequests::has_one_number(RecordId id, std::int32_t output) const {
  const auto* record = core_.step->records.find(id);
  if (record == nullptr || static_cast<std::size_t>(output) >= record->outputs.size()) return false;
  const auto& edge = record->outputs[static_cast<std::size_t>(output)];
  if (!edge.is_valid()) return false;
  const auto sizes = edge.function->input_metadata(edge.input_nr).shape_as_dim_vector();
  return std::all_of(sizes.begin(), sizes.end(), [](const auto& size) { return size == 1; });
}

/// Starts a request whose gradients have come. If one of them failed, it is answered as not run and
/// its record is kept, since the caller's own backward did not get that far.
void BackwardRequests::start(BackwardTask&& task, bool input_failed) {
  if (!core_.in_good_step()) return;
  const auto& request = task.request;
  const auto& early = request.early;
  if (early && early->output >= 0 && !has_one_number(request.record, early->output)) {
    input_failed = true;
  }
  if (!input_failed) return launch(std::move(task));
  answer_.send_not_run(task.source, request.request, module_of(request.record), request.microbatch,
                       "its gradient comes from a backward");
  fail_routes(task.source, request);
}

void BackwardRequests::run(BackwardTask&& task) {
  auto& request = task.request;
  core_.step->admission.keep(request.microbatch);
  core_.step->admission.hold(Phase::kBackward, request.microbatch);
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
  answer_.send(
      task.source, request.request, scope,
      [&] {
        const auto* path = core_.scopes.modules.path(identity.module);
        if (request.create_graph) return graph_of_gradients(request, scope);
        auto gradients = reached ? run_backward_of(request, scope, rest)
                                 : variable_list(BoundaryInput::edges_into(record->inputs).size());
        return response_to(task.source, request, std::move(gradients), path);
      },
      [&] { fail_routes(task.source, request); });
  if (rest && rest->part) run_rest(*rest, scope);
  if (core_.in_good_step()) core_.step->admission.drop(request.microbatch);
}

/// Sends gradients that have a route along it, and puts the others into the answer to the caller.
BackwardResponse BackwardRequests::response_to(PpRank caller, BackwardRequest& request,
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
  response.left_rest = graphs_.has_left(request);
  return response;
}

void BackwardRequests::send_along(const GradientRoute& route, PassedOn&& message) {
  message.gradient = true;
  core_.scopes.recorder.note(RequestKind::kPassedOn, message.caller, message.consumer);
  if (route.to != core_.port.rank()) return core_.port.send(route.to, Message(std::move(message)));
  // As it would arrive elsewhere: strides decide in which order sums are taken.
  for (auto& tensor : message.tensors) {
    if (tensor.defined()) tensor = clone_on_write(d2d::contiguous_data(tensor));
  }
  core_.step->admission.take(std::move(message));
}

void BackwardRequests::fail_routes(PpRank caller, const BackwardRequest& request) {
  for (const auto& route : request.routes) {
    send_along(route, {caller, route.consumer, route.index, /*failed=*/true});
  }
}

/// Takes the record of `request`, or copies it if the request says that the graph is kept for
/// another backward. @throws UsageError  an earlier backward has freed it.
Record BackwardRequests::take_record(const BackwardRequest& request) const {
  auto& records = core_.step->records;
  auto* record = records.find(request.record);
  SMP_REQUIRE(
      record != nullptr,
      "Trying to backward through the graph a second time: the graph of a remote module was "
      "freed by the first backward; keep it with retain_graph");
  if (request.keep_graph) {
    auto copy = *record;
    record->left.clear();
    return copy;
  }
  auto taken = *records.take(request.record);
  core_.step->admission.drop(taken.microbatch);  // this pass keeps the microbatch meanwhile
  return taken;
}

/// Returns the flags for this backward: those at the end of the forward, unless the caller has
/// frozen or unfrozen parameters since.
SettingsBoard::View BackwardRequests::settings_of(const BackwardRequest& request,
                                                  const Record& record) {
  if (!request.settings) return record.settings;
  auto& board = core_.scopes.settings;
  const auto& module = core_.scopes.modules.module(record.module);
  const auto& part = board.flags().subtree(const_cast<RoutedBase&>(module).smp_module());
  return board.view_of(part, *request.settings);
}

variable_list BackwardRequests::run_backward_of(BackwardRequest& request, ExecutionScope& scope,
                                                std::optional<WeightWork>& rest) {
  restore_forms(request.forms, request.gradients);
  const auto record = take_record(request);
  const GraphTurns::Turn turn(record.turns, wait_for_turn(record));
  const bool keep_graph = request.keep_graph || record.turns != nullptr;
  if (request.early && request.early->output >= 0) {
    const auto output = static_cast<std::size_t>(request.early->output);
    request.gradients.at(output) =
        gradient_of_loss(record.outputs.at(output), request.early->weight);
  }
  if (core_.accumulator.after_first_backward(record.execution)) scope.set_after_first_backward();
  const ModesScope modes(record.modes.without_autocast());
  scope.settings().set(settings_of(request, record));
  edge_list roots;
  variable_list gradients;
  for (std::size_t i = 0; i < record.outputs.size(); ++i) {
    if (!record.outputs[i].is_valid() || !request.gradients.at(i).defined()) continue;
    roots.push_back(record.outputs[i]);
    gradients.push_back(std::move(request.gradients[i]));
  }
  if (request.only_inputs) {
    auto found = gradients_of_inputs(record, roots, std::move(gradients), keep_graph);
    if (!request.keep_graph) core_.accumulator.close(record.execution);
    return found;
  }
  GradientGraphs::add_rest(request, record, roots, gradients);
  auto border = graphs_.border_of(request);
  GradientAccumulator::Pass sink(core_.accumulator, record.execution,
                                 scope.identity().after_first_backward);
  auto& inputs = *record.inputs;
  auto options = pass_options(keep_graph, core_);
  options.random_key = scope.random_key_of_hooks();
  options.boundary = &inputs;
  options.border = border ? &*border : nullptr;
  if (core_.step->progress.splits_backward(record.microbatch)) {
    rest.emplace(WeightWork{record, sink, {}});
    rest->part = run_input_part(roots, std::move(gradients), options, &rest->sink);
    if (rest->part) core_.step->weights.begin(record.microbatch);
  } else {
    run_backward(roots, std::move(gradients), options, {}, &sink);
  }
  if (border) graphs_.leave(request, *std::move(border));
  if (!rest || !rest->part) core_.accumulator.close(record.execution);
  return inputs.fetch();
}

/// Runs the backward of smp::grad() with create_graph.
BackwardResponse BackwardRequests::graph_of_gradients(BackwardRequest& request,
                                                      ExecutionScope& scope) {
  restore_forms(request.forms, request.gradients);
  const auto record = take_record(request);
  const GraphTurns::Turn turn(record.turns, wait_for_turn(record));
  if (core_.accumulator.after_first_backward(record.execution)) scope.set_after_first_backward();
  const ModesScope modes(record.modes.without_autocast());
  scope.settings().set(settings_of(request, record));
  auto response = graphs_.run(request, record, scope);
  if (!request.keep_graph) core_.accumulator.close(record.execution);
  return response;
}

/// The reason that reports give for a pass that waits for another one.
fiber::WaitReason BackwardRequests::wait_for_turn(const Record& record) const {
  return {"another backward of this graph", core_.scopes.modules.path(record.module),
          core_.port.name().value(), record.microbatch};
}

/// Runs the second part of a backward once this rank has no work that others wait for. An exception
/// fails the step, because the caller has its answer already.
void BackwardRequests::run_rest(WeightWork& rest, ExecutionScope& scope) try {
  const auto microbatch = rest.record.microbatch;
  set_priority(core_.priority(Phase::kWeightGradient, microbatch));
  core_.turns.give_way();
  core_.step->admission.hold(Phase::kWeightGradient, microbatch);
  if (core_.step->failed()) return;
  scope.set_phase(Phase::kWeightGradient);
  core_.step->begins(Phase::kWeightGradient, microbatch);
  const WorkTimes::Measured measured(core_.times, core_.step->progress, scope);
  const ModesScope modes(rest.record.modes.without_autocast());
  rest.part.run();
  core_.accumulator.close(rest.record.execution);
  if (core_.step->weights.end(microbatch)) core_.end_microbatch(microbatch);
  core_.server.wake.signal();
} catch (const StepAborted&) {
  throw;
} catch (...) {
  char who[256] = "";
  scope.describe(who, sizeof who);
  failures_.fail_step(
      remote_exception(failure_of(std::current_exception(), core_.port.rank(), who)));
}

/// Runs the backward of smp::grad(): only nodes that lead to the boundary are executed.
variable_list BackwardRequests::gradients_of_inputs(const Record& record, const edge_list& roots,
                                                    variable_list&& gradients, bool keep_graph) {
  auto options = pass_options(keep_graph, core_);
  options.random_key = ExecutionScope::current()->random_key_of_hooks();
  options.accumulate = false;
  const auto inputs = BoundaryInput::edges_into(record.inputs);
  if (inputs.empty()) return {};
  return run_backward(roots, std::move(gradients), options, inputs);
}

}  // namespace smp::server
