// api/planning/trial_warnings.cpp: each says what is done instead, and what helps.
#include "api/planning/trial_warnings.h"

#include <cmath>

#include "api/model/module_types.h"
#include "base/check.h"
#include "base/log.h"

namespace smp {
namespace {

std::string place_of(const TrialFault& fault) {
  return fault.module.empty() ? std::string("the step's body") : "module '" + fault.module + "'";
}

/// LibTorch adds advice for other uses of tensors without values.
std::string first_sentence(const std::string& text) { return text.substr(0, text.find(". ")); }

}  // namespace

void warn_of_clock(bool on_device) {
  base::log(base::LogLevel::kWarning,
            "trace_repeats is ignored, and modules are priced by the operators they run: ",
            on_device ? "only what runs on CPUs is timed"
                      : "the model's initialisation is delayed, so there are no values to run "
                        "it with; build it without smp::delay_param_initialization, or set "
                        "delayed_parameter_initialization to false, to have it timed");
}

void warn_of_repeats() {
  base::log(base::LogLevel::kWarning,
            "trace_repeats is ignored, and modules are priced by the operators they run: no "
            "repetition made the same calls as the first run");
}

void warn_of_silent_nodes(const std::vector<simulate::Trace>& traces) {
  for (const auto& name : traces.front().silent_nodes) {
    base::log(base::LogLevel::kWarning, "what autograd's ", name,
              " keeps for its backward is not known (a node written by hand, or a tensor that "
              "was changed in place after it was saved); the plan's activations lack it");
  }
}

void warn_of_unrouted_cost(const ModelDescription& model, const PartitionPlan& plan) {
  constexpr double kTooMuch = 1.5;  // shares of a stage
  const auto& rows = plan.rows();
  std::vector<double> held(rows.size(), 0);  // by the routed module that runs them
  std::vector<std::size_t> costliest(rows.size(), 0);
  for (std::size_t i = 1; i < rows.size(); ++i) {
    if (model.routed[i] != nullptr) continue;
    auto above = static_cast<std::size_t>(model.tree.nodes[i].parent);
    while (above > 0 && model.routed[above] == nullptr) {
      above = static_cast<std::size_t>(model.tree.nodes[above].parent);
    }
    held[above] += rows[i].cost;
    auto& most = costliest[above];
    if (most == 0 || rows[i].cost > rows[most].cost) most = i;
  }
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (plan.pp_size() < 2 || held[i] * plan.pp_size() < kTooMuch) continue;
    const auto& example = rows[costliest[i]].path;
    base::log(
        base::LogLevel::kWarning, "module '", rows[i].path.empty() ? "<root>" : rows[i].path, "' (",
        ModuleTypes::name_of(*model.modules[i]), ") holds ", std::lround(100 * held[i]),
        " % of the model's cost in modules that cannot be on ", "other stages than it, '", example,
        "' (", ModuleTypes::name_of(*model.modules[costliest[i]]),
        ") among them; declare their classes with SMP_MODULE in place of TORCH_MODULE, and use "
        "smp::nn in place of torch::nn");
  }
}

void tell_of_device(at::Device device, const TrialFault& fault) {
  base::log(base::LogLevel::kInfo, "planning: the trial run of the first step is one on ", device,
            ", in this process (smp::trace_on_device), because it cannot be run on shapes: ",
            place_of(fault), fault.how, ": ", first_sentence(fault.text));
}

void warn_of_failure(const TrialFault& fault, const char* no_values, bool sliced,
                     const std::string& no_device) {
  const bool shapes_only = no_values != nullptr;
  base::log(base::LogLevel::kWarning,
            "the step could not be run in advance to see what its modules cost, so modules are "
            "counted instead: ",
            place_of(fault), fault.how, ": ", shapes_only ? first_sentence(fault.text) : fault.text,
            shapes_only ? base::concat(
                              "\n    (", no_values,
                              ", so the attempt has shapes but no values; item() and conditions on "
                              "tensors were given 1, then 0)")
                        : std::string(),
            sliced ? "\n    (weights of modules that are spread over ranks are slices: a head that "
                     "multiplies by table->weight needs a table that is not marked, or "
                     "smp::nn::DistributedVocabulary, which reads and scores by one table)"
                   : "",
            no_device.empty()
                ? std::string()
                : base::concat("\n    (smp::trace_on_device() has no effect: ", no_device, ")"),
            "\n    (skip_tracing = true avoids the attempt; code that cannot run in advance may "
            "ask smp::is_tracing())");
}

}  // namespace smp
