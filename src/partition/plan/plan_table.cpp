// partition/plan/plan_table.cpp: a row for each stage; columns that only some plans need.
#include "partition/plan/plan_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "partition/plan/plan_promise.h"
#include "partition/plan/plan_remarks.h"
#include "partition/plan/stage_modules.h"
#include "partition/text/module_names.h"
#include "partition/text/short_text.h"
#include "partition/text/text_table.h"

namespace smp::partitioning {
namespace {

/// The width of the other columns, if nothing in them is unusually wide.
constexpr int kOtherColumns = 60;
constexpr int kDeviceWidth = 11;
constexpr int kNodeWidth = 6;
constexpr int kLeastModulesWidth = 20;

std::string bar(double share) {
  constexpr int kWidth = 10;
  const auto full = std::lround(share * kWidth);
  std::string text;
  for (int i = 0; i < kWidth; ++i) text += i < full ? "▇" : "░";
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

}  // namespace

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
    cells.insert(cells.end(), {joined(modules[stage]), short_count(totals.elements[stage])});
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
  const std::string promise = summary ? plan_promise(plan, width) + "\n" : std::string();
  return promise + body + plan_remarks(plan, width);
}

}  // namespace smp::partitioning
