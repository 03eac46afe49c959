// server/requests.cpp: ModuleServer runs what other ranks ask for (paper §4.2, App. B).
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "server/detached.h"
#include "server/exception_text.h"
#include "server/module_server.h"

namespace smp::server {
namespace {

/// The caller's modes, for one request.
class ModesScope {
 public:
  explicit ModesScope(const Modes& modes) : grad_(modes.grad_mode) {
    at::autocast::set_autocast_enabled(at::kCPU, modes.autocast);
    if (modes.autocast) at::autocast::set_autocast_dtype(at::kCPU, modes.autocast_dtype);
    // Its entries carry autograd history: one microbatch's graph would contain another's casts.
    at::autocast::set_autocast_cache_enabled(false);
  }
  ~ModesScope() { at::autocast::set_autocast_enabled(at::kCPU, false); }
  ModesScope(const ModesScope&) = delete;
  ModesScope& operator=(const ModesScope&) = delete;

 private:
  at::AutoGradMode grad_;
};

std::vector<bool> flags_of(const std::string& bytes) { return {bytes.begin(), bytes.end()}; }

/// In-place changes of an argument would be invisible to the caller.
class UnchangedArguments {
 public:
  explicit UnchangedArguments(const std::vector<at::Tensor>& tensors) : tensors_(tensors) {
    for (const auto& tensor : tensors_) versions_.push_back(version(tensor));
  }
  void check(const std::string& who) const {
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      SMP_REQUIRE_AS(UnsupportedError, version(tensors_[i]) == versions_[i], who,
                     " changed tensor ", i, " of its arguments in place, shape ",
                     tensors_[i].sizes(),
                     "; its caller on another rank would not see that. Use an out-of-place "
                     "operation, or place this module with its caller");
    }
  }

 private:
  static std::int64_t version(const at::Tensor& tensor) {
    return tensor.defined() && !tensor.is_inference() ? tensor._version() : 0;
  }
  std::vector<at::Tensor> tensors_;
  std::vector<std::int64_t> versions_;
};

}  // namespace

/// Runs `run` for the fiber's `execution` and sends what it returns, or the exception it throws.
template <class Run>
void ModuleServer::answer(int source, std::uint64_t request, Execution& execution, Run&& run) {
  auto* fiber = base::current_fiber();
  fiber->execution = &execution;
  on_switch(&execution, true);
  Message response;
  try {
    if (aborting_) throw_aborted();
    response = run();
  } catch (const StepAborted&) {
    on_switch(&execution, false);
    throw;
  } catch (...) {
    char who[256] = "";
    describe(&execution, who, sizeof who);
    if (execution.phase == schedule::Phase::kForward) {
      accumulator_.mark_closed(execution.microbatch, execution.index);
      wake_.signal();
    }
    response = {};
    response.failure = failure_of(std::current_exception(), rank(), who);
  }
  on_switch(&execution, false);
  fiber->execution = nullptr;
  response.kind = Kind::kResponse;
  response.request = request;
  send(source, std::move(response));
}

// ---- forward ----------------------------------------------------------------------------------

void ModuleServer::execute_forward(int source, Message&& message) {
  SMP_REQUIRE(message.microbatch < task_.microbatches, "rank ", source, " runs microbatch ",
              message.microbatch, ", but this step has ", task_.microbatches,
              " microbatches on rank ", rank(), "; give the step the same options on every rank");
  const auto& place = requested_module(message).smp_place;
  Execution execution{message.microbatch, accumulator_.open(message.microbatch, message.late),
                      message.late,       schedule::Phase::kForward,
                      place.index,        place.path.c_str()};
  ++counters_.executed_forward;
  const auto order = priority(schedule::Phase::kForward, message.microbatch);
  workers_.launch(
      [this, source, execution, request = std::move(message)]() mutable {
        answer(source, request.request, execution,
               [&] { return run_forward(std::move(request), execution); });
      },
      order);
}

RoutedBase& ModuleServer::requested_module(const Message& request) const {
  const auto number = static_cast<std::size_t>(request.module);
  SMP_ASSERT(number < modules_.size(), "module ", request.module, " of ", modules_.size());
  SMP_ASSERT(modules_[number] != nullptr, "module ", request.module, " of a model that is gone");
  return *modules_[number];
}

Message ModuleServer::run_forward(Message&& request, const Execution& execution) {
  auto& module = requested_module(request);
  const auto* entry = find_call(request.call);
  SMP_ASSERT(entry != nullptr && entry->run != nullptr, execution.path, ", call ", request.call);
  SMP_REQUIRE(module.smp_module().is_training() == request.modes.training, "the caller has it in ",
              request.modes.training ? "training" : "evaluation",
              " mode, the owner does not; call train() or eval() on every rank");
  SMP_REQUIRE(request.frozen_hash == frozen_hash_,
              "other parameters are frozen (requires_grad) on the caller's rank than on this one; "
              "freeze the same ones on every rank, between steps");
  const ModesScope modes(request.modes);
  auto inputs = make_boundary(request.tensors, flags_of(request.requires_grad));
  const UnchangedArguments unchanged(request.tensors);
  Packet arguments{std::move(request.body), std::move(request.tensors)};
  Packet result = [&] {
    const LocalCall scope(*this, module);
    return entry->run(module.smp_module(), arguments);
  }();
  unchanged.check(execution.path);
  return answer_forward(std::move(result), std::move(inputs), request, execution);
}

Message ModuleServer::answer_forward(Packet&& result, c10::intrusive_ptr<BoundaryInput> inputs,
                                     const Message& request, const Execution& execution) {
  Message response;
  Record record{
      std::move(inputs), {},           execution.microbatch, execution.index, execution.module,
      execution.path,    request.modes};
  bool any = false;
  for (auto& tensor : result.tensors) {
    const bool differentiable = tensor.defined() && tensor.requires_grad();
    any |= differentiable;
    response.requires_grad.push_back(static_cast<char>(differentiable));
    record.outputs.push_back(differentiable ? torch::autograd::impl::gradient_edge(tensor)
                                            : torch::autograd::Edge());
    response.tensors.push_back(detached(tensor));
  }
  response.body = std::move(result.bytes);
  if (any) {
    accumulator_.recorded(execution.microbatch, execution.index, record.outputs);
    response.record = records_.add(std::move(record));
  } else {
    accumulator_.close(execution.microbatch, execution.index);
  }
  return response;
}

// ---- backward ---------------------------------------------------------------------------------

void ModuleServer::execute_backward(int source, Message&& message) {
  // It may overtake the word that the microbatch's forward is done.
  accumulator_.mark_forward_done(message.microbatch);
  ++counters_.executed_backward;
  const auto order = priority(schedule::Phase::kBackward, message.microbatch);
  workers_.launch(
      [this, source, request = std::move(message)]() mutable {
        Execution execution;
        execution.microbatch = request.microbatch;
        execution.phase = schedule::Phase::kBackward;
        execution.path = "<record>";
        answer(source, request.request, execution,
               [&] { return run_record(std::move(request), execution); });
      },
      order);
}

Message ModuleServer::run_record(Message&& request, Execution& execution) {
  const auto record = records_.take(request.record, request.keep_graph);
  SMP_REQUIRE(record.has_value(),
              "Trying to backward through the graph a second time: the graph "
              "of a remote module was freed by the first backward; keep it with retain_graph");
  execution.index = record->index;
  execution.late = request.late || accumulator_.is_late(record->microbatch, record->index);
  execution.module = record->module;
  execution.path = record->path;
  on_switch(&execution, false);
  on_switch(&execution, true);
  auto modes_of_backward = record->modes;
  modes_of_backward.autocast = false;
  const ModesScope modes(modes_of_backward);

  edge_list roots;
  variable_list gradients;
  for (std::size_t i = 0; i < record->outputs.size(); ++i) {
    if (!record->outputs[i].is_valid() || !request.tensors.at(i).defined()) continue;
    roots.push_back(record->outputs[i]);
    gradients.push_back(std::move(request.tensors[i]));
  }
  GradientAccumulator::Pass sink(accumulator_, record->microbatch, record->index, execution.late);
  auto& inputs = *record->inputs;
  inputs.captured.clear();
  run_backward(roots, std::move(gradients), {request.keep_graph}, {}, &sink);
  accumulator_.close(record->microbatch, record->index);
  Message response;
  response.tensors = std::exchange(inputs.captured, {});
  response.tensors.resize(inputs.num_inputs());
  for (auto& tensor : response.tensors) tensor = detached(tensor);
  return response;
}

}  // namespace smp::server
