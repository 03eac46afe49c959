// partition/plan/plan_remarks.cpp: one function for each remark; empty where there is none.
#include "partition/plan/plan_remarks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>
#include <vector>

#include "base/check.h"
#include "partition/model/module_tree.h"
#include "partition/plan/plan_promise.h"
#include "partition/text/module_names.h"
#include "partition/text/short_text.h"
#include "partition/text/text_table.h"

namespace smp::partitioning {
namespace {

using base::concat;

constexpr double kNoise = 1e-6;  // of a number of percent
constexpr std::size_t kShownBound = 3;
constexpr std::size_t kShownState = 8;
constexpr const char* kStays = "stays with its parent";

std::string cores_text(const PlanSummary& summary) {
  if (summary.cores == 0) return "a core a stage";
  return fmt::format("{} stages on {:.3g} cores", summary.stages.size(), summary.cores);
}

// Modules that keep state, and what that costs.
std::string state_text(const PartitionPlan& plan, int width) {
  std::string text;
  bool shared = false;
  std::size_t shown = 0;
  std::size_t count = 0;
  for (const PartitionPlan::Row& row : plan.rows()) {
    if (row.state.empty() || row.state == "cache") continue;  // the first step alone differs
    if (row.state == "values") continue;                      // values_text()
    shared |= row.state == "shared";
    ++count;
    if (++shown > kShownState) continue;
    const std::string name = row.path.empty() ? "the model itself" : row.path;
    text +=
        wrapped_lines(concat("state: the forward of ", name, " ", row.state_what,
                             row.state == "shared" ? "; it and the modules above it stay on stage 0"
                                                   : "; its microbatches run one after the other"),
                      width);
  }
  if (count > kShownState) text += concat("state: ", count - kShownState, " more modules\n");
  if (shared) {
    text += wrapped_lines(
        "state: so a step runs one microbatch at a time, without overlap of stages; "
        "smp::ordered_state_v or smp::private_state_v says that no other code reads it",
        width);
  }
  return text;
}

// Modules whose costs may be those of another branch than steps will take.
std::string values_text(const PartitionPlan& plan, int width) {
  std::string text;
  std::size_t count = 0;
  for (const PartitionPlan::Row& row : plan.rows()) {
    if (row.state != "values" || ++count > kShownState) continue;
    const std::string name = row.path.empty() ? "the model itself" : row.path;
    text +=
        wrapped_lines(concat("costs: the forward of ", name, " ", row.state_what,
                             ", since there are none before initialisation: it may cost otherwise"),
                      width);
  }
  if (count > kShownState) text += concat("costs: ", count - kShownState, " more modules\n");
  return text;
}

/// Returns the devices as "3 h100 and 1 cpu", in the order of the stages; empty if the plan does
/// not say.
std::string devices_text(const PlanSummary& summary) {
  std::vector<std::pair<std::string, int>> counts;
  for (const StageSummary& stage : summary.stages) {
    if (stage.device.empty()) return {};
    const auto known = std::find_if(counts.begin(), counts.end(),
                                    [&](auto& count) { return count.first == stage.device; });
    if (known == counts.end()) {
      counts.emplace_back(stage.device, 1);
    } else {
      ++known->second;
    }
  }
  std::string text;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    text += i == 0 ? "" : i + 1 == counts.size() ? " and " : ", ";
    text += concat(counts[i].second, " ", counts[i].first);
  }
  return text;
}

std::string hardware_text(const PlanSummary& summary) {
  const auto devices = devices_text(summary);
  if (devices.empty()) return cores_text(summary);
  return summary.cores == 0 ? devices : concat(devices, ", ", cores_text(summary));
}

std::string link_text(const PlanSummary::Link& link) {
  return fmt::format("{} and {:.3g} GB/s", short_seconds(link.seconds),
                     link.bytes_per_second / 1e9);
}

/// Describes the links between stages; empty if all of them are as usual.
std::string links_text(const PlanSummary& summary) {
  const bool usual = devices_text(summary).empty() && summary.across_nodes.bytes_per_second == 0;
  if (usual || summary.within_node.bytes_per_second == 0) return {};
  std::string text = "messages: " + link_text(summary.within_node);
  if (summary.across_nodes.bytes_per_second == 0) return text;
  return concat(text, " within a node, ", link_text(summary.across_nodes),
                " between nodes, where messages of one adapter queue");
}

std::string bound_text(const PlanSummary& summary) {
  if (summary.step_bound <= 0 || !knows_times(summary)) return {};
  const double above = summary.chosen.step_seconds / summary.step_bound - 1;
  return fmt::format(
      "step: at most {:.0f} % above the {} that any placement takes, if calls form a chain and "
      "messages are free",
      std::max(0.0, std::ceil(100 * above - kNoise)), short_seconds(summary.step_bound));
}

std::string origin_text(const PlanSummary& summary) {
  if (knows_times(summary)) {
    return concat("predicted, not measured, for ", hardware_text(summary), "; costs from ",
                  summary.costs);
  }
  return concat(
      "costs are counts of modules, since the model was not run: nothing is known of times "
      "and of activations; simulated for ",
      cores_text(summary));
}

// Where a stage is one module alone and its cost the bound, the ratio says nothing of the split.
std::string bottleneck_text(const PartitionPlan& plan) {
  constexpr double kAsPrinted = 5e-3;
  const PlanSummary& summary = *plan.summary();
  const auto largest =
      std::max_element(summary.stages.begin(), summary.stages.end(),
                       [](const auto& a, const auto& b) { return a.cost < b.cost; });
  const bool at_bound = summary.chosen.bottleneck_to_bound < 1 + kAsPrinted;
  const auto row = std::find_if(plan.rows().begin(), plan.rows().end(), [&](const auto& own) {
    return own.cost > largest->cost * (1 - kAsPrinted);
  });
  if (summary.stages.size() < 2 || !at_bound || row == plan.rows().end()) {
    return "bottleneck: cost of the largest stage over a bound that no split goes below";
  }
  return concat("bottleneck: cost of the largest stage, which is ", quoted_path(row->path),
                " alone, over a bound that no split goes below");
}

/// Names the outermost modules of which activations are computed again; empty: there are none.
std::string recomputed_text(const PartitionPlan& plan) {
  std::map<std::string, bool> within;  // by path: it, or a module around it, is one of them
  std::vector<std::string> whole, but_products;
  for (const PartitionPlan::Row& row : plan.rows()) {
    const bool outer = !row.path.empty() && within[parent_path(row.path)];
    within[row.path] = outer || row.recomputed;
    if (!row.recomputed || outer) continue;
    (row.keeps_products ? but_products : whole)
        .push_back(row.path.empty() ? "the model" : row.path);
  }
  if (whole.empty() && but_products.empty()) return {};
  std::string text = "computed again in backward, instead of held: ";
  if (!whole.empty()) text += joined(short_names(whole));
  if (but_products.empty()) return text;
  return concat(text, whole.empty() ? "" : "; ",
                "but for products: ", joined(short_names(but_products)));
}

/// The simulator has calls run again in their backwards, wherever a stage would idle before.
std::string ahead_text(const PartitionPlan& plan) {
  const bool any = std::any_of(plan.rows().begin(), plan.rows().end(),
                               [](const auto& row) { return row.recomputed; });
  if (!any || plan.pp_size() == 1) return {};
  return "not predicted: what a stage computes again ahead, while it would idle, makes the step "
         "shorter; what offload_activations takes away, memory smaller";
}

std::string in_flight_text(const PlanSummary& summary) {
  const int active = summary.active_microbatches;
  return active == 0 ? std::string()
                     : concat("active_microbatches: ", active, ", chosen with the placement");
}

// Of a plan with a summary.
std::string remarks_on_numbers(const PartitionPlan& plan, int width) {
  const PlanSummary& summary = *plan.summary();
  std::string text =
      wrapped_lines(origin_text(summary), width) + wrapped_lines(links_text(summary), width) +
      wrapped_lines(bound_text(summary), width) + wrapped_lines(recomputed_text(plan), width) +
      wrapped_lines(ahead_text(plan), width) + wrapped_lines(in_flight_text(summary), width);
  for (const std::string& line :
       {bottleneck_text(plan),
        std::string(
            "memory: at most, with all microbatches in flight at their worst on that stage"),
        std::string(
            "cut: bytes that enter and leave a stage per microbatch in the forward pass")}) {
    text += wrapped_lines(line, width);
  }
  std::size_t bound = 0;
  for (const PartitionPlan::Row& row : plan.rows()) {
    if (row.why.rfind(kStays, 0) != 0) continue;
    if (++bound <= kShownBound) text += wrapped_lines(concat(row.path, " ", row.why), width);
  }
  if (bound > kShownBound) text += concat(bound - kShownBound, " more modules stay like that\n");
  return text;
}

}  // namespace

std::string plan_remarks(const PartitionPlan& plan, int width) {
  const std::string on_numbers = plan.summary() ? remarks_on_numbers(plan, width) : std::string();
  return on_numbers + state_text(plan, width) + values_text(plan, width);
}

}  // namespace smp::partitioning
