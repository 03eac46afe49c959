// partition/simulated/planned_step.cpp: calls as lines of numbers, the rest by name.
#include "partition/simulated/planned_step.h"

#include <algorithm>

#include "base/check.h"
#include "config/config_keys.h"
#include "config/json.h"
#include "partition/model/count_trace.h"
#include "partition/search/partitioner.h"
#include "partition/simulated/json_numbers.h"
#include "partition/simulated/machine_json.h"

namespace smp::partitioning {
namespace {

using base::Json;
using base::json_element;
using base::json_member;
using simulate::ComputeInterval;
using simulate::StateKind;
using simulate::Trace;
using simulate::TracedCall;

// Of a call: module, caller, before, after (3 numbers each), input, output, live and gradient
// bytes, whether it is a Sequential; then, if known, the backward of before and after (2 numbers
// each).
constexpr std::size_t kCallNumbers = 13;
constexpr std::size_t kBackwardNumbers = 2;
constexpr double kUnknown = -1;

void append(Json& numbers, const ComputeInterval& interval) {
  numbers.push_back(interval.seconds);
  numbers.push_back(interval.activation_bytes);
  numbers.push_back(interval.gradient_bytes);
}

ComputeInterval interval_at(const Json& numbers, std::size_t first, const std::string& name) {
  return {quantity_at(numbers, first, name), bytes_at(numbers, first + 1, name),
          bytes_at(numbers, first + 2, name)};
}

void append_backward(Json& numbers, const ComputeInterval& interval) {
  numbers.push_back(interval.backward_seconds < 0 ? kUnknown : interval.backward_seconds);
  numbers.push_back(interval.weight_seconds);
}

/// Reads the seconds that gradients of weights take. They are a part of `backward`, but may exceed
/// it by rounding. @throws UsageError
double weights_at(const Json& numbers, std::size_t index, double backward,
                  const std::string& name) {
  constexpr double kRounding = 1 + 1e-9;
  const double weights = quantity_at(numbers, index, name);
  SMP_REQUIRE(weights <= backward * kRounding, name,
              ": gradients of weights take longer than all of the backward in ",
              base::excerpt(base::json_text(numbers)));
  return std::min(weights, backward);
}

void read_backward(ComputeInterval& interval, const Json& numbers, std::size_t first,
                   const std::string& name) {
  const bool unknown = json_element<double>(numbers, first, name) == kUnknown;
  interval.backward_seconds = unknown ? kUnknown : quantity_at(numbers, first, name);
  interval.weight_seconds = unknown
                                ? quantity_at(numbers, first + 1, name)
                                : weights_at(numbers, first + 1, interval.backward_seconds, name);
}

bool knows_backward(const TracedCall& call) {
  return call.before.backward_seconds >= 0 || call.after.backward_seconds >= 0;
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
  if (!knows_backward(call)) return numbers;
  append_backward(numbers, call.before);
  append_backward(numbers, call.after);
  return numbers;
}

TracedCall call_from_json(const Json& numbers, int index, const std::string& name) {
  require_numbers(numbers, kCallNumbers, "a call", name, 2 * kBackwardNumbers);
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
  if (numbers.size() == kCallNumbers) return call;
  read_backward(call.before, numbers, kCallNumbers, name);
  read_backward(call.after, numbers, kCallNumbers + kBackwardNumbers, name);
  return call;
}

bool keeps_order(const Trace& trace) {
  return std::any_of(trace.state.begin(), trace.state.end(),
                     [](const auto& change) { return change.kind == StateKind::kOrdered; });
}

/// Returns a shared tensor as [bytes, call, before, call, before, ...].
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

/// Returns the uses of each tensor as [bytes, kind, call, before, kind, call, before, ...]: those
/// that matter where calls are computed again, which are arguments of those and results of what
/// they call.
Json uses_to_json(const Trace& trace, const simulate::RecomputedModules& recomputed) {
  const auto is_again = [&](int call) {
    return call >= 0 &&
           simulate::find_module(recomputed, trace.calls[static_cast<std::size_t>(call)].module) !=
               nullptr;
  };
  const auto matters = [&](const simulate::TensorUse& use) {
    if (use.kind == simulate::TensorUseKind::kArgument) return is_again(use.at.call);
    return use.kind == simulate::TensorUseKind::kKept ||
           is_again(trace.calls[static_cast<std::size_t>(use.at.call)].caller);
  };
  constexpr std::size_t kTwoUses = 7;
  Json tensors = Json::array();
  for (std::size_t i = 0; i < trace.uses.size();) {
    const int tensor = trace.uses[i].tensor;
    Json numbers = {trace.uses[i].bytes};
    bool passed = false;
    for (; i < trace.uses.size() && trace.uses[i].tensor == tensor; ++i) {
      const auto& use = trace.uses[i];
      if (!matters(use)) continue;
      passed |= use.kind != simulate::TensorUseKind::kKept;
      for (const int number : {static_cast<int>(use.kind), use.at.call, use.at.before ? 1 : 0}) {
        numbers.push_back(number);
      }
    }
    if (passed && numbers.size() >= kTwoUses) tensors.push_back(std::move(numbers));
  }
  return tensors;
}

void read_uses(Trace& trace, const Json& json, const std::string& name) {
  const auto calls = static_cast<int>(trace.calls.size());
  int tensor = 0;
  for (const Json& numbers : json_member<std::vector<Json>>(json, "uses", name)) {
    SMP_REQUIRE(numbers.is_array() && numbers.size() % 3 == 1, name,
                ": uses of a tensor are its bytes and three numbers for each, not ",
                base::excerpt(base::json_text(numbers)));
    const auto bytes = bytes_at(numbers, 0, name);
    for (std::size_t i = 1; i < numbers.size(); i += 3) {
      const int kind = json_element<int>(numbers, i, name);
      const simulate::IntervalId at{json_element<int>(numbers, i + 1, name),
                                    json_element<int>(numbers, i + 2, name) != 0};
      const bool kept = kind == static_cast<int>(simulate::TensorUseKind::kKept);
      SMP_REQUIRE(kind >= 0 && kind <= static_cast<int>(simulate::TensorUseKind::kResult), name,
                  ": a tensor is kept (0), an argument (1) or a result (2), not ", kind);
      SMP_REQUIRE(at.call >= (kept && !at.before ? -1 : 0) && at.call < calls, name,
                  ": there is no call ", at.call);
      trace.uses.push_back({tensor, bytes, static_cast<simulate::TensorUseKind>(kind), at});
    }
    ++tensor;
  }
}

ComputeInterval& interval_of(Trace& trace, const simulate::IntervalId& id) {
  if (id.call < 0) return trace.body_after;
  auto& call = trace.calls[static_cast<std::size_t>(id.call)];
  return id.before ? call.before : call.after;
}

/// Returns the products of each interval that has any, as [call, before, seconds, bytes, saved].
Json products_to_json(const Trace& trace) {
  Json products = Json::array();
  const auto add = [&](const ComputeInterval& own, int call, bool before) {
    if (own.product_bytes == 0) return;
    products.push_back(
        {call, before ? 1 : 0, own.product_seconds, own.product_bytes, own.saved_product_bytes});
  };
  for (int call = 0; call < static_cast<int>(trace.calls.size()); ++call) {
    add(trace.calls[static_cast<std::size_t>(call)].before, call, true);
    add(trace.calls[static_cast<std::size_t>(call)].after, call, false);
  }
  add(trace.body_after, -1, false);
  return products;
}

void read_products(Trace& trace, const Json& json, const std::string& name) {
  const auto calls = static_cast<int>(trace.calls.size());
  for (const Json& numbers : json_member<std::vector<Json>>(json, "products", name)) {
    require_numbers(numbers, 5, "products of an interval", name);
    const simulate::IntervalId id{json_element<int>(numbers, 0, name),
                                  json_element<int>(numbers, 1, name) != 0};
    SMP_REQUIRE(id.call >= (id.before ? 0 : -1) && id.call < calls, name, ": there is no call ",
                id.call);
    auto& own = interval_of(trace, id);
    own.product_seconds = quantity_at(numbers, 2, name);
    own.product_bytes = bytes_at(numbers, 3, name);
    own.saved_product_bytes = std::min(bytes_at(numbers, 4, name), own.activation_bytes);
  }
}

void read_recomputed(Trace& trace, const Json& json, const std::string& name) {
  const auto modules_of = [&](const char* member) {
    return json.contains(member) ? json_member<std::vector<int>>(json, member, name)
                                 : std::vector<int>();
  };
  const auto keeping_products = modules_of("keeping_products");
  for (const int module : modules_of("recomputed")) {
    const auto found = std::find(keeping_products.begin(), keeping_products.end(), module);
    trace.recomputed.push_back({module, found != keeping_products.end()});
  }
  std::sort(trace.recomputed.begin(), trace.recomputed.end());
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

/// Reads the call whose result is the loss; -1 if unknown, as in older plans. @throws UsageError
int loss_call_from_json(const Json& json, int calls, const std::string& name) {
  if (!json.contains("loss_call")) return -1;
  const int call = json_member<int>(json, "loss_call", name);
  SMP_REQUIRE(call >= -1 && call < calls, name, ": \"loss_call\" is ", call, ", and there are ",
              calls, " calls");
  return call;
}

/// Returns, by device, the times [forward, backward, weights] of each interval in seconds.
Json profiles_to_json(const Trace& trace) {
  Json profiles = Json::array();
  for (const auto& profile : trace.profiles) {
    Json times = Json::array();
    for (const auto& own : profile.times) {
      times.push_back({own.forward, own.backward, own.weights});
    }
    profiles.push_back({{"device", profile.device}, {"speed", profile.speed}, {"times", times}});
  }
  return profiles;
}

void read_profiles(Trace& trace, const Json& json, const std::string& name) {
  trace.device = json_member<std::string>(json, "device", name);
  for (const Json& own : json_member<std::vector<Json>>(json, "profiles", name)) {
    auto& profile = trace.profiles.emplace_back();
    profile.device = json_member<std::string>(own, "device", name);
    profile.speed = json_member<double>(own, "speed", name);
    for (const Json& times : json_member<std::vector<Json>>(own, "times", name)) {
      require_numbers(times, 3, "the times of an interval", name);
      const double backward = quantity_at(times, 1, name);
      profile.times.push_back(
          {quantity_at(times, 0, name), backward, weights_at(times, 2, backward, name)});
    }
    SMP_REQUIRE(profile.times.size() == trace.num_intervals(), name, ": ", profile.times.size(),
                " times on a device for ", trace.num_intervals(), " intervals of the calls");
  }
}

/// Reads the calls of one microbatch into `trace`. @throws UsageError
void read_calls(Trace& trace, const Json& json, const std::string& name) {
  const auto after = json_member<Json>(json, "body_after", name);
  require_numbers(after, 3, "\"body_after\"", name, kBackwardNumbers);
  trace.body_after = interval_at(after, 0, name);
  if (after.size() > 3) read_backward(trace.body_after, after, 3, name);
  for (const Json& call : json_member<std::vector<Json>>(json, "calls", name)) {
    trace.calls.push_back(call_from_json(call, static_cast<int>(trace.calls.size()), name));
  }
  require_callers_are_running(trace.calls, name);
  trace.loss_call = loss_call_from_json(json, static_cast<int>(trace.calls.size()), name);
  if (json.contains("profiles")) read_profiles(trace, json, name);
  if (json.contains("products")) read_products(trace, json, name);
  for (const Json& tensor : json_member<std::vector<Json>>(json, "shared", name)) {
    trace.shared.push_back(shared_from_json(tensor, static_cast<int>(trace.calls.size()), name));
  }
  if (json.contains("uses")) read_uses(trace, json, name);
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
  if (json.contains("others")) {
    const Trace alike = trace;
    for (const Json& other : json_member<std::vector<Json>>(json, "others", name)) {
      trace.others.push_back(alike);
      read_calls(trace.others.back(), other, name);
    }
  }
  read_calls(trace, json, name);
  read_recomputed(trace, json, name);
  return trace;
}

std::string devices_text(const Trace& trace) {
  if (trace.device.empty()) return {};
  return base::concat(",\n    \"device\": ", base::json_text(trace.device),
                      ",\n    \"profiles\": ", profiles_to_json(trace).dump());
}

/// Returns the calls of one microbatch as the members of a JSON object, without the braces.
std::string calls_text(const Trace& trace, const Trace& all) {
  Json after = Json::array(), shared = Json::array();
  append(after, trace.body_after);
  if (trace.body_after.backward_seconds >= 0) append_backward(after, trace.body_after);
  for (const auto& tensor : trace.shared) shared.push_back(shared_to_json(tensor));
  std::string text =
      base::concat("\"loss_call\": ", trace.loss_call, ",\n    \"body_after\": ", after.dump(),
                   ",\n    \"shared\": ", shared.dump(), devices_text(trace));
  if (!all.recomputed.empty() && !trace.uses.empty()) {
    text += base::concat(",\n    \"uses\": ", uses_to_json(trace, all.recomputed).dump());
  }
  if (std::any_of(all.recomputed.begin(), all.recomputed.end(),
                  [](const auto& each) { return each.keeps_products; })) {
    text += base::concat(",\n    \"products\": ", products_to_json(trace).dump());
  }
  text += ",\n    \"calls\": [";
  for (const TracedCall& call : trace.calls) {
    text += (&call == &trace.calls.front() ? "\n      " : ",\n      ") + call_to_json(call).dump();
  }
  return text + "]";
}

}  // namespace

std::string PlannedStep::to_json() const {
  std::string text = base::concat("{\"pipeline\": ", base::json_text(pipeline),
                                  ", \"microbatches\": ", microbatches,
                                  ", \"active_microbatches\": ", active_microbatches,
                                  ",\n    \"machine\": ", machine_to_json(machine).dump(),
                                  ",\n    \"backward_ratio\": ", Json(trace.backward_ratio).dump(),
                                  ", \"weight_share\": ", Json(trace.weight_share).dump(),
                                  ", \"keeps_order\": ", keeps_order(trace) ? "true" : "false");
  std::vector<int> recomputed, keeping_products;
  for (const auto& [module, keeps_products] : trace.recomputed) {
    recomputed.push_back(module);
    if (keeps_products) keeping_products.push_back(module);
  }
  if (!recomputed.empty()) {
    text += base::concat(",\n    \"recomputed\": ", Json(recomputed).dump());
  }
  if (!keeping_products.empty()) {
    text += base::concat(",\n    \"keeping_products\": ", Json(keeping_products).dump());
  }
  if (!trace.others.empty()) {
    text += ",\n    \"others\": [";
    for (const Trace& other : trace.others) {
      text +=
          base::concat(&other == &trace.others.front() ? "{" : "}, {", calls_text(other, trace));
    }
    text += "}]";
  }
  return base::concat(text, ", ", calls_text(trace, trace), "}");
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
  step.trace = trace_to_plan(tree, options.trace);
  step.machine = options.machine;
  step.machine.stages = options.pp_size;
  step.pipeline = options.pipeline;
  step.microbatches = options.microbatches;
  step.active_microbatches = std::max(1, options.active_microbatches);
  return step;
}

std::vector<int> stages_of(const PartitionPlan& plan, const PlannedStep& step) {
  SMP_REQUIRE(plan.pp_size() == step.machine.stages, "the plan is for ", plan.pp_size(),
              " stages, and its step for ", step.machine.stages, "; plan the program again");
  std::vector<int> stages;
  for (const PartitionPlan::Row& row : plan.rows()) stages.push_back(row.pp_rank);
  for (std::size_t i = 0; i < step.trace.num_traced(); ++i) {
    for (const auto& call : step.trace.of_microbatch(i).calls) {
      SMP_REQUIRE(call.module < static_cast<int>(stages.size()), "the plan has ", stages.size(),
                  " modules, and its step calls module ", call.module, "; plan the program again");
    }
  }
  return stages;
}

}  // namespace smp::partitioning
