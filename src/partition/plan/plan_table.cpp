// partition/plan/plan_table.cpp: finds the outermost whole modules of a stage and lays out the
// table.
#include "partition/plan/plan_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <map>
#include <optional>

#include "base/check.h"
#include "partition/model/module_tree.h"
#include "partition/text/short_text.h"
#include "partition/text/text_table.h"

namespace smp::partitioning {
namespace {

using base::concat;

/// The width of the other columns, if nothing in them is unusually wide.
constexpr int kOtherColumns = 60;
constexpr double kNoise = 1e-6;  // of a number of percent
constexpr int kDeviceWidth = 11;
constexpr int kNodeWidth = 6;
constexpr int kLeastModulesWidth = 20;
constexpr std::size_t kShownBound = 3;
constexpr std::size_t kShownState = 8;
constexpr const char* kStays = "stays with its parent";

std::string parent_path(const std::string& path) {
  const auto dot = path.rfind('.');
  return dot == std::string::npos ? std::string() : path.substr(0, dot);
}

// What the rows below and including a module have in common.
struct Subtree {
  bool whole = true;        // all on the stage of the module itself
  bool parameters = false;  // any, tied ones included
};

std::map<std::string, Subtree> subtrees(const PartitionPlan& plan) {
  std::map<std::string, Subtree> found;
  std::map<std::string, int> stages;
  for (const PartitionPlan::Row& row : plan.rows()) stages[row.path] = row.pp_rank;
  for (auto row = plan.rows().rbegin(); row != plan.rows().rend(); ++row) {
    Subtree& here = found[row->path];
    here.parameters |= !row->parameters.empty();
    if (row->path.empty()) continue;
    Subtree& parent = found[parent_path(row->path)];
    parent.whole &= here.whole && stages[parent_path(row->path)] == row->pp_rank;
    parent.parameters |= here.parameters;
  }
  return found;
}

// "encoder.block.3" as ("encoder.block", 3).
struct Numbered {
  std::string prefix;
  int number;
};

std::optional<Numbered> numbered(const std::string& path) {
  const auto dot = path.rfind('.');
  const std::string last = dot == std::string::npos ? path : path.substr(dot + 1);
  int number = 0;
  const auto [end, error] = std::from_chars(last.data(), last.data() + last.size(), number);
  if (error != std::errc() || end != last.data() + last.size()) return std::nullopt;
  return Numbered{parent_path(path), number};
}

std::string range_name(const Numbered& first, int last) {
  const std::string numbers = concat("[", first.number, ":", last + 1, "]");
  return first.prefix.empty() ? numbers : first.prefix + numbers;
}

// Joins neighbours a.0, a.1, a.2 to a[0:3].
std::vector<std::string> with_ranges(const std::vector<std::string>& paths) {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < paths.size();) {
    const auto first = numbered(paths[i]);
    std::size_t next = i + 1;
    for (; first && next < paths.size(); ++next) {
      const auto other = numbered(paths[next]);
      const int expected = first->number + static_cast<int>(next - i);
      if (!other || other->prefix != first->prefix || other->number != expected) break;
    }
    const int last = first ? first->number + static_cast<int>(next - i) - 1 : 0;
    names.push_back(next > i + 1 ? range_name(*first, last) : paths[i]);
    i = next;
  }
  return names;
}

// Joins neighbours a.x, a.y, a.z to a.{x, y, z}.
std::vector<std::string> with_braces(const std::vector<std::string>& paths) {
  constexpr std::size_t kWorthIt = 3;
  std::vector<std::string> names;
  for (std::size_t i = 0; i < paths.size();) {
    const std::string parent = parent_path(paths[i]);
    std::size_t next = i + 1;
    while (!parent.empty() && next < paths.size() && parent_path(paths[next]) == parent) ++next;
    const bool joined = next - i >= kWorthIt;
    std::string list;
    for (std::size_t k = i; k < next; ++k) {
      if (!joined) names.push_back(paths[k]);
      list +=
          (list.empty() ? "" : ", ") + paths[k].substr(parent.size() + (parent.empty() ? 0 : 1));
    }
    if (joined) names.push_back(concat(parent, ".{", list, "}"));
    i = next;
  }
  return names;
}

std::string bar(double share) {
  constexpr int kWidth = 10;
  const auto full = std::lround(share * kWidth);
  std::string text;
  for (int i = 0; i < kWidth; ++i) text += i < full ? "▇" : "░";
  return text;
}

std::string join(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += text.empty() ? name : ", " + name;
  return text;
}

struct Totals {
  std::vector<std::int64_t> elements;  // by stage
  std::vector<std::int64_t> bytes;
  std::int64_t largest = 0;  // bytes of a stage

  double share(int stage) const {
    return largest > 0 ? static_cast<double>(bytes[stage]) / static_cast<double>(largest) : 0;
  }
};

Totals totals_of(const PartitionPlan& plan) {
  Totals totals{std::vector<std::int64_t>(plan.pp_size(), 0),
                std::vector<std::int64_t>(plan.pp_size(), 0), 0};
  for (const PartitionPlan::Row& row : plan.rows()) {
    totals.elements.at(row.pp_rank) += row.elements;
    totals.bytes.at(row.pp_rank) += row.bytes;
  }
  totals.largest = *std::max_element(totals.bytes.begin(), totals.bytes.end());
  return totals;
}

/// The columns that only some plans need.
struct Extras {
  bool device = false;  // stages compute on different ones
  bool node = false;    // they are on several

  static Extras of(const std::optional<PlanSummary>& summary) {
    Extras extras;
    if (!summary) return extras;
    const StageSummary& first = summary->stages.front();
    for (const StageSummary& stage : summary->stages) {
      extras.device |= stage.device != first.device;
      extras.node |= stage.node != first.node;
    }
    return extras;
  }
  /// The number of columns before that of the modules.
  int count() const { return 1 + (device ? 1 : 0) + (node ? 1 : 0); }
  int width() const { return (device ? kDeviceWidth : 0) + (node ? kNodeWidth : 0); }
};

std::vector<TextTable::Column> columns(bool predicted, const Extras& extras, int width) {
  const int modules = std::max(kLeastModulesWidth, width - kOtherColumns - extras.width());
  std::vector<TextTable::Column> all = {{"stage", true}};
  if (extras.device) all.push_back({"on"});
  if (extras.node) all.push_back({"node", true});
  all.insert(all.end(), {{"modules", false, modules}, {"parameters", true}});
  if (predicted) {
    all.insert(all.end(), {{"memory", true}, {"cost", true}, {"cut in", true}, {"cut out", true}});
  } else {
    all.insert(all.end(), {{"weights", true}, {"share", false}});
  }
  return all;
}

void add_prediction(std::vector<std::string>& cells, const StageSummary& stage) {
  cells.push_back(short_bytes(stage.most_memory()));
  cells.push_back(fmt::format("{:.1f} %", 100 * stage.cost));
  cells.push_back(short_bytes(stage.bytes_in));
  cells.push_back(short_bytes(stage.bytes_out));
}

std::string counted(int count, const char* what) {
  const char* plural = what[std::strlen(what) - 1] == 'h' ? "es" : "s";
  return concat(count, " ", what, count == 1 ? "" : plural);
}

std::string lines_of(const std::string& text, int width) {
  std::string lines;
  if (text.empty()) return lines;
  for (const std::string& line : wrapped(text, width)) lines += line + "\n";
  return lines;
}

// The stage that comes closest to its limit, if there are limits.
std::string memory_text(const PlanSummary& summary) {
  const StageSummary* tightest = nullptr;
  const auto use = [](const StageSummary& stage) {
    return static_cast<double>(stage.most_memory()) / static_cast<double>(stage.memory_limit);
  };
  for (const StageSummary& stage : summary.stages) {
    if (stage.memory_limit == 0) continue;
    if (tightest == nullptr || use(stage) > use(*tightest)) tightest = &stage;
  }
  if (tightest == nullptr) return {};
  return concat("memory: stage ", tightest - summary.stages.data(),
                use(*tightest) > 1 ? " may exceed its limit most, at most "
                                   : " comes closest to its limit, at most ",
                short_bytes(tightest->most_memory()), " of ", short_bytes(tightest->memory_limit));
}

/// False for a plan whose modules were only counted: its seconds would be invented.
bool knows_times(const PlanSummary& summary) { return summary.costs != "counts"; }

std::vector<std::string> outcome_cells(const PlanSummary::Outcome& outcome, bool times,
                                       const char* remark) {
  std::vector<std::string> cells = {outcome.strategy};
  if (times) cells.push_back(short_seconds(outcome.step_seconds));
  cells.push_back(fmt::format("{:.0f} %", 100 * outcome.bubble));
  cells.push_back(fmt::format("{:.2f}", outcome.bottleneck_to_bound));
  cells.emplace_back(outcome.fits   ? remark
                     : *remark != 0 ? concat(remark, ", does not fit")
                                    : "does not fit");
  return cells;
}

std::string outcomes_table(const PlanSummary& summary, int width) {
  const bool times = knows_times(summary);
  std::vector<TextTable::Column> titles = {{"strategy"}};
  if (times) titles.push_back({"step", true});
  titles.insert(titles.end(), {{"bubble", true}, {"bottleneck", true}, {""}});
  TextTable outcomes(titles);
  outcomes.add_row(outcome_cells(summary.chosen, times, summary.others.empty() ? "" : "chosen"));
  for (const auto& other : summary.others) outcomes.add_row(outcome_cells(other, times, ""));
  return outcomes.finish(width);
}

// What the plan is expected to do, and what others would have done.
std::string promise(const PartitionPlan& plan, int width) {
  const PlanSummary& summary = *plan.summary();
  const std::string setting =
      concat(counted(plan.pp_size(), "stage"), ", ", counted(summary.microbatches, "microbatch"),
             " a step, schedule ", summary.pipeline);
  return lines_of(setting, width) + "\n" + outcomes_table(summary, width) +
         lines_of(memory_text(summary), width);
}

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
    text += lines_of(concat("state: the forward of ", name, " ", row.state_what,
                            row.state == "shared" ? "; it and the modules above it stay on stage 0"
                                                  : "; its microbatches run one after the other"),
                     width);
  }
  if (count > kShownState) text += concat("state: ", count - kShownState, " more modules\n");
  if (shared) {
    text += lines_of(
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
    text += lines_of(concat("costs: the forward of ", name, " ", row.state_what,
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
      std::ceil(100 * std::max(0.0, above) - kNoise), short_seconds(summary.step_bound));
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
  std::vector<std::string> outermost;
  for (const PartitionPlan::Row& row : plan.rows()) {
    const bool outer = !row.path.empty() && within[parent_path(row.path)];
    within[row.path] = outer || row.recomputed;
    if (row.recomputed && !outer) outermost.push_back(row.path.empty() ? "the model" : row.path);
  }
  if (outermost.empty()) return {};
  return concat("computed again in backward, instead of held: ",
                join(with_braces(with_ranges(outermost))));
}

std::string in_flight_text(const PlanSummary& summary) {
  const int active = summary.active_microbatches;
  return active == 0 ? std::string()
                     : concat("active_microbatches: ", active, ", chosen with the placement");
}

// What the columns do not say by themselves.
std::string remarks(const PartitionPlan& plan, int width) {
  const PlanSummary& summary = *plan.summary();
  std::string text = lines_of(origin_text(summary), width) + lines_of(links_text(summary), width) +
                     lines_of(bound_text(summary), width) + lines_of(recomputed_text(plan), width) +
                     lines_of(in_flight_text(summary), width);
  for (const std::string& line :
       {bottleneck_text(plan),
        std::string(
            "memory: at most, with all microbatches in flight at their worst on that stage"),
        std::string(
            "cut: bytes that enter and leave a stage per microbatch in the forward pass")}) {
    text += lines_of(line, width);
  }
  std::size_t bound = 0;
  for (const PartitionPlan::Row& row : plan.rows()) {
    if (row.why.rfind(kStays, 0) != 0) continue;
    if (++bound <= kShownBound) text += lines_of(concat(row.path, " ", row.why), width);
  }
  if (bound > kShownBound) text += concat(bound - kShownBound, " more modules stay like that\n");
  return text;
}

}  // namespace

std::vector<std::vector<std::string>> modules_of_stages(const PartitionPlan& plan) {
  const auto trees = subtrees(plan);
  std::vector<std::vector<std::string>> with_parameters(plan.pp_size());
  std::vector<std::vector<std::string>> all(plan.pp_size());
  for (const PartitionPlan::Row& row : plan.rows()) {
    const Subtree& here = trees.at(row.path);
    const bool own = !here.whole && !row.parameters.empty();
    const bool inside = !row.path.empty() && trees.at(parent_path(row.path)).whole;
    if (inside || !(here.whole || own)) continue;
    const std::string path = row.path.empty() ? "the model" : row.path;
    const std::string name = own ? path + " (its own parameters)" : path;
    all[row.pp_rank].push_back(name);
    if (here.parameters) with_parameters[row.pp_rank].push_back(name);
  }
  for (int stage = 0; stage < plan.pp_size(); ++stage) {
    const auto& shown = with_parameters[stage].empty() ? all[stage] : with_parameters[stage];
    all[stage] = with_braces(with_ranges(shown));
  }
  return all;
}

std::string plan_table(const PartitionPlan& plan, int width) {
  const auto& summary = plan.summary();
  const Totals totals = totals_of(plan);
  const auto modules = modules_of_stages(plan);
  const auto extras = Extras::of(summary);
  TextTable table(columns(summary.has_value(), extras, width));
  for (int stage = 0; stage < plan.pp_size(); ++stage) {
    std::vector<std::string> cells = {std::to_string(stage)};
    if (extras.device) cells.push_back(summary->stages[stage].device);
    if (extras.node) cells.push_back(std::to_string(summary->stages[stage].node));
    cells.insert(cells.end(), {join(modules[stage]), short_count(totals.elements[stage])});
    if (!summary) {
      cells.push_back(short_bytes(totals.bytes[stage]));
      cells.push_back(bar(totals.share(stage)));
    } else {
      add_prediction(cells, summary->stages[stage]);
    }
    table.add_row(std::move(cells));
    if (summary) table.add_note("why: " + summary->stages[stage].why, extras.count());
  }
  const std::string body = table.finish(width);
  return summary ? promise(plan, width) + "\n" + body + remarks(plan, width) +
                       state_text(plan, width) + values_text(plan, width)
                 : body + state_text(plan, width) + values_text(plan, width);
}

}  // namespace smp::partitioning
