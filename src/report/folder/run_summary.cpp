// report/folder/run_summary.cpp: two tables: the steps, and the memory of the stages.
#include "report/folder/run_summary.h"

#include <fmt/format.h>

#include "base/check.h"
#include "partition/text/short_text.h"
#include "partition/text/text_table.h"
#include "report/pictures/memory_table.h"

namespace smp::report {
namespace {

using base::concat;
using partitioning::short_seconds;
using partitioning::TextTable;

constexpr const char* kNothing = "-";

std::string whole_percent(double share) { return fmt::format("{:.0f} %", 100 * share); }

/// The predictions of the plan; null if there are none, or its modules were counted and not run, so
/// that no times are known.
const PlanSummary* promise_of(const RunFacts& facts) {
  if (!facts.plan || !facts.plan->summary() || facts.plan->summary()->costs == "counts") {
    return nullptr;
  }
  return &*facts.plan->summary();
}

std::string head(const RunFacts& facts) {
  const auto count = facts.steps;
  std::string text =
      concat(facts.name, " on ", facts.world_size, facts.world_size == 1 ? " rank" : " ranks",
             ", started ", facts.started, ": ", count, count == 1 ? " step" : " steps");
  if (!facts.ended_well) text += "; it still runs, or did not end as it should";
  return text;
}

std::string losses_text(const RunFacts& facts) {
  const auto first = first_of(facts, "loss");
  if (!first) return {};
  if (facts.steps == 1) return fmt::format("loss {:.4g}\n", *first);
  return fmt::format("loss {:.4g} in the first step, {:.4g} in the last\n", *first,
                     *last_of(facts, "loss"));
}

std::string steps_table(const RunFacts& facts, int width) {
  const auto* const promise = promise_of(facts);
  TextTable table({{"a step"}, {"measured", true}, {"predicted", true}});
  const auto seconds = median_of(facts, "step_seconds");
  if (seconds) {
    table.add_row({"time", short_seconds(*seconds),
                   promise ? short_seconds(promise->chosen.step_seconds) : kNothing});
  }
  const auto bubble = median_of(facts, "bubble");
  if (bubble) {
    table.add_row({"bubble", whole_percent(*bubble),
                   promise ? whole_percent(promise->chosen.bubble) : kNothing});
  }
  bool any = seconds || bubble;
  for (const auto& [name, values] : facts.numbers) {
    const auto shown = rate_name(name);
    const auto median = shown.empty() ? std::nullopt : median_of(facts, name);
    if (!median) continue;
    table.add_row({shown, fmt::format("{:.0f}", *median), kNothing});
    any = true;
  }
  return any ? table.finish(width) : std::string();
}

std::string memory_table(const RunFacts& facts, int width) {
  const bool predicted = facts.plan && facts.plan->summary();
  const auto rows = memory_rows(facts.memory, predicted ? &*facts.plan->summary() : nullptr);
  if (rows.empty()) return {};
  std::vector<TextTable::Column> columns;
  for (const auto& title : rows.front()) columns.push_back({title, !columns.empty()});
  TextTable table(std::move(columns));
  for (auto row = rows.begin() + 1; row != rows.end(); ++row) table.add_row(*row);
  return table.finish(width);
}

std::string remarks(const RunFacts& facts, int width) {
  std::string text;
  if (facts.steps > 1) text = "Medians, without the first step. ";
  if (!facts.memory.empty()) text += kMeasuredMemory;
  std::string lines;
  for (const auto& line : partitioning::wrapped(text, width)) lines += line + "\n";
  return text.empty() ? text : lines;
}

}  // namespace

std::string run_summary(const RunFacts& facts, int width) {
  std::string text = facts.name.empty() ? std::string() : head(facts) + "\n";
  if (!facts.computing.empty()) {
    for (const auto& line : partitioning::wrapped(facts.computing, width)) text += line + "\n";
  }
  text += losses_text(facts);
  for (const auto& table : {steps_table(facts, width), memory_table(facts, width)}) {
    if (!table.empty()) text += "\n" + table;
  }
  return text + remarks(facts, width);
}

}  // namespace smp::report
