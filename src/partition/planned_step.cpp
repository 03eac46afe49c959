// partition/planned_step.cpp: calls as lines of numbers, the rest by name.
#include "partition/planned_step.h"

#include <algorithm>

#include "base/check.h"
#include "base/config_keys.h"
#include "base/json.h"
#include "partition/count_trace.h"
#include "partition/partitioner.h"

namespace smp::partitioning {
namespace {

using base::Json;
using base::json_element;
using base::json_member;
using simulate::ComputeInterval;
using simulate::Machine;
using simulate::StateKind;
using simulate::Trace;
using simulate::TracedCall;

// Of a call: module, caller, before, after (3 numbers each), input, output, live and gradient
// bytes, whether it is a Sequential.
constexpr std::size_t kCallNumbers = 13;

constexpr double kMostSeconds = 1e9;
constexpr std::int64_t kMostBytes = std::int64_t{1} << 44;

void append(Json& numbers, const ComputeInterval& interval) {
  numbers.push_back(interval.seconds);
  numbers.push_back(interval.activation_bytes);
  numbers.push_back(interval.gradient_bytes);
}

/// From 0 to what any sum of them stays far below.
double quantity_at(const Json& numbers, std::size_t index, const std::string& name) {
  const auto quantity = base::json_element<double>(numbers, index, name);
  SMP_REQUIRE(quantity >= 0 && quantity <= kMostSeconds, name, ": element ", index, " of ",
              base::excerpt(base::json_text(numbers)), " must be from 0 to ", kMostSeconds);
  return quantity;
}

std::int64_t bytes_at(const Json& numbers, std::size_t index, const std::string& name) {
  const auto bytes = base::json_element<std::int64_t>(numbers, index, name);
  SMP_REQUIRE(bytes >= 0 && bytes <= kMostBytes, name, ": element ", index, " of ",
              base::excerpt(base::json_text(numbers)), " must be from 0 to ", kMostBytes);
  return bytes;
}

ComputeInterval interval_at(const Json& numbers, std::size_t first, const std::string& name) {
  return {quantity_at(numbers, first, name), bytes_at(numbers, first + 1, name),
          bytes_at(numbers, first + 2, name)};
}

Json call_to_json(const TracedCall& call) {
  Json numbers = {call.module, call.caller};
  append(numbers, call.before);
  append(numbers, call.after);
  for (const std::int64_t bytes :
       {call.input_bytes, call.output_bytes, call.caller_live_bytes, call.caller_gradient_bytes}) {
    numbers.push_back(bytes);
  }
  numbers.push_back(call.sequential ? 1 : 0);
  return numbers;
}

void require_numbers(const Json& numbers, std::size_t count, const char* what,
                     const std::string& name) {
  const bool right = numbers.is_array() && numbers.size() == count;
  SMP_REQUIRE(right, name, ": ", what, " must be ", count, " numbers, found ",
              base::excerpt(base::json_text(numbers)));
}

TracedCall call_from_json(const Json& numbers, int index, const std::string& name) {
  require_numbers(numbers, kCallNumbers, "a call", name);
  TracedCall call;
  call.module = json_element<int>(numbers, 0, name);
  call.caller = json_element<int>(numbers, 1, name);
  SMP_REQUIRE(call.module >= 0 && call.caller >= -1 && call.caller < index, name, ": call ", index,
              " is of module ", call.module, " by call ", call.caller,
              ", which must come before it");
  call.before = interval_at(numbers, 2, name);
  call.after = interval_at(numbers, 5, name);
  call.input_bytes = bytes_at(numbers, 8, name);
  call.output_bytes = bytes_at(numbers, 9, name);
  call.caller_live_bytes = bytes_at(numbers, 10, name);
  call.caller_gradient_bytes = bytes_at(numbers, 11, name);
  call.sequential = json_element<int>(numbers, 12, name) != 0;
  return call;
}

bool keeps_order(const Trace& trace) {
  return std::any_of(trace.state.begin(), trace.state.end(),
                     [](const auto& change) { return change.kind == StateKind::kOrdered; });
}

/// [bytes, call, before, call, before, ...]
Json shared_to_json(const simulate::SharedTensor& tensor) {
  Json numbers = {tensor.bytes};
  for (const auto& keeper : tensor.keepers) {
    numbers.push_back(keeper.call);
    numbers.push_back(keeper.before ? 1 : 0);
  }
  return numbers;
}

simulate::SharedTensor shared_from_json(const Json& numbers, int calls, const std::string& name) {
  require_numbers(numbers, numbers.size() | 1, "a shared tensor", name);
  simulate::SharedTensor tensor{bytes_at(numbers, 0, name), {}};
  for (std::size_t i = 1; i < numbers.size(); i += 2) {
    const simulate::IntervalId keeper{json_element<int>(numbers, i, name),
                                      json_element<int>(numbers, i + 1, name) != 0};
    SMP_REQUIRE(keeper.call >= -1 && keeper.call < calls, name, ": there is no call ", keeper.call);
    tensor.keepers.push_back(keeper);
  }
  return tensor;
}

Json machine_to_json(const Machine& machine) {
  Json hosts = Json::array();
  for (const auto& host : machine.oversubscribed) {
    hosts.push_back({{"stages", host.stages}, {"cores", host.cores}});
  }
  return {{"stages", machine.stages},
          {"speeds", machine.speeds},
          {"oversubscribed", hosts},
          {"latency", machine.latency},
          {"bytes_per_second", machine.bytes_per_second},
          {"handling", machine.handling},
          {"patient", machine.patient},
          {"promised_outputs", machine.promised_outputs}};
}

bool is_from(double value, double least, double most) { return value >= least && value <= most; }

bool is_fit(const Machine::Host& host, int stages) {
  return is_from(host.cores, 1e-6, 1e6) &&
         std::all_of(host.stages.begin(), host.stages.end(),
                     [&](int stage) { return stage >= 0 && stage < stages; });
}

void require_sense(const Machine& machine, const std::string& name) {
  SMP_REQUIRE(machine.stages >= 1 && machine.stages <= base::kMostStages, name, ": a machine of ",
              machine.stages, " stages, expected at least 1 and at most ", base::kMostStages);
  const bool speeds_fit = (machine.speeds.empty() ||
                           machine.speeds.size() == static_cast<std::size_t>(machine.stages)) &&
                          std::all_of(machine.speeds.begin(), machine.speeds.end(),
                                      [](double speed) { return is_from(speed, 1e-6, 1e6); });
  SMP_REQUIRE(speeds_fit, name, ": \"speeds\" must be ", machine.stages,
              " numbers from 1e-6 to 1e6, or none");
  SMP_REQUIRE(is_from(machine.latency, 0, kMostSeconds) &&
                  is_from(machine.handling, 0, kMostSeconds) && machine.bytes_per_second >= 1,
              name, ": a message takes ", machine.latency, " s, ", machine.handling,
              " s of its threads and ", machine.bytes_per_second, " bytes/s");
  for (const Machine::Host& host : machine.oversubscribed) {
    SMP_REQUIRE(is_fit(host, machine.stages), name, ": a host of \"oversubscribed\" has ",
                host.cores, " cores, or stages beyond ", machine.stages - 1);
  }
}

Machine machine_from_json(const Json& json, const std::string& name) {
  Machine machine;
  machine.stages = json_member<int>(json, "stages", name);
  machine.speeds = json_member<std::vector<double>>(json, "speeds", name);
  for (const Json& host : json_member<std::vector<Json>>(json, "oversubscribed", name)) {
    machine.oversubscribed.push_back({json_member<std::vector<int>>(host, "stages", name),
                                      json_member<double>(host, "cores", name)});
  }
  machine.latency = json_member<double>(json, "latency", name);
  machine.bytes_per_second = json_member<double>(json, "bytes_per_second", name);
  machine.handling = json_member<double>(json, "handling", name);
  machine.patient = json_member<bool>(json, "patient", name);
  machine.promised_outputs = json_member<bool>(json, "promised_outputs", name);
  require_sense(machine, name);
  return machine;
}

// A call is made by the last one that has not returned, or after it returned by the one around it.
void require_callers_are_running(const std::vector<TracedCall>& calls, const std::string& name) {
  std::vector<int> running = {-1};
  for (std::size_t i = 0; i < calls.size(); ++i) {
    while (!running.empty() && running.back() != calls[i].caller) running.pop_back();
    SMP_REQUIRE(!running.empty(), name, ": call ", i, " is made by call ", calls[i].caller,
                ", which has returned before it");
    running.push_back(static_cast<int>(i));
  }
}

/// Older plans do not say.
int loss_call_from_json(const Json& json, int calls, const std::string& name) {
  if (!json.contains("loss_call")) return -1;
  const int call = json_member<int>(json, "loss_call", name);
  SMP_REQUIRE(call >= -1 && call < calls, name, ": \"loss_call\" is ", call, ", and there are ",
              calls, " calls");
  return call;
}

Trace trace_from_json(const Json& json, const std::string& name) {
  Trace trace;
  trace.backward_ratio = json_member<double>(json, "backward_ratio", name);
  trace.weight_share = json_member<double>(json, "weight_share", name);
  SMP_REQUIRE(is_from(trace.backward_ratio, 0, 1e6) && is_from(trace.weight_share, 0, 1), name,
              ": \"backward_ratio\" is ", trace.backward_ratio, " and \"weight_share\" ",
              trace.weight_share, ", expected from 0 to 1e6 and from 0 to 1");
  if (json_member<bool>(json, "keeps_order", name)) {
    trace.state.push_back({0, StateKind::kOrdered, ""});
  }
  const auto after = json_member<Json>(json, "body_after", name);
  require_numbers(after, 3, "\"body_after\"", name);
  trace.body_after = interval_at(after, 0, name);
  for (const Json& call : json_member<std::vector<Json>>(json, "calls", name)) {
    trace.calls.push_back(call_from_json(call, static_cast<int>(trace.calls.size()), name));
  }
  require_callers_are_running(trace.calls, name);
  trace.loss_call = loss_call_from_json(json, static_cast<int>(trace.calls.size()), name);
  for (const Json& tensor : json_member<std::vector<Json>>(json, "shared", name)) {
    trace.shared.push_back(shared_from_json(tensor, static_cast<int>(trace.calls.size()), name));
  }
  return trace;
}

}  // namespace

std::string PlannedStep::to_json() const {
  Json after = Json::array(), shared = Json::array();
  append(after, trace.body_after);
  for (const auto& tensor : trace.shared) shared.push_back(shared_to_json(tensor));
  std::string text = base::concat(
      "{\"pipeline\": ", base::json_text(pipeline), ", \"microbatches\": ", microbatches,
      ", \"active_microbatches\": ", active_microbatches,
      ",\n    \"machine\": ", machine_to_json(machine).dump(),
      ",\n    \"backward_ratio\": ", Json(trace.backward_ratio).dump(),
      ", \"weight_share\": ", Json(trace.weight_share).dump(),
      ", \"keeps_order\": ", keeps_order(trace) ? "true" : "false",
      ", \"loss_call\": ", trace.loss_call, ",\n    \"body_after\": ", after.dump(),
      ",\n    \"shared\": ", shared.dump(), ",\n    \"calls\": [");
  for (const TracedCall& call : trace.calls) {
    text += (&call == &trace.calls.front() ? "\n      " : ",\n      ") + call_to_json(call).dump();
  }
  return text + "]}";
}

PlannedStep PlannedStep::from_json(const std::string& text, const std::string& name) {
  const Json json = base::parse_json(text, name);
  PlannedStep step;
  step.pipeline = json_member<std::string>(json, "pipeline", name);
  step.microbatches = json_member<int>(json, "microbatches", name);
  step.active_microbatches = json_member<int>(json, "active_microbatches", name);
  SMP_REQUIRE(step.microbatches >= 1 && step.active_microbatches >= 1 &&
                  step.microbatches <= base::kMostMicrobatches,
              name, ": a step of ", step.microbatches, " microbatches, of which ",
              step.active_microbatches, " are in flight");
  step.machine = machine_from_json(json_member<Json>(json, "machine", name), name);
  step.trace = trace_from_json(json, name);
  return step;
}

PlannedStep planned_step(const ModuleTree& tree, const PartitionOptions& options) {
  PlannedStep step;
  step.trace = options.trace.calls.empty() ? count_trace(tree) : options.trace;
  step.trace.state = options.trace.state;
  step.machine = options.machine;
  step.machine.stages = options.pp_size;
  step.pipeline = options.pipeline;
  step.microbatches = options.microbatches;
  step.active_microbatches = std::max(1, options.active_microbatches);
  return step;
}

}  // namespace smp::partitioning
