// report/folder/sweep_table.cpp: the same rows as text, CSV and JSON.
#include "report/folder/sweep_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "base/check.h"
#include "config/json.h"
#include "partition/text/short_text.h"
#include "partition/text/text_table.h"
#include "report/export/metrics_table.h"

namespace smp::report {
namespace {

constexpr const char* kUnknown = "-";
constexpr const char* kSettings = "settings";

/// Returns the names of the rates that some run has, in the order in which they first appear.
std::vector<std::string> rates_of(const Sweep& sweep) {
  std::vector<std::string> names;
  for (const auto& run : sweep.runs) {
    for (const auto& [name, rate] : run.result.rates) {
      if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
    }
  }
  return names;
}

template <class Number, class Format>
std::string cell_of(const std::optional<Number>& number, Format format) {
  return number ? format(*number) : kUnknown;
}

std::vector<std::string> cells_of(const SweepRun& run, const std::vector<std::string>& rates) {
  const auto& result = run.result;
  auto cells = run.values;
  cells.push_back(cell_of(result.step_seconds, partitioning::short_seconds));
  for (const auto& rate : rates) {
    cells.push_back(cell_of(number_named(result.rates, rate),
                            [](double number) { return fmt::format("{:.0f}", number); }));
  }
  cells.push_back(cell_of(result.loss, [](double loss) { return fmt::format("{:.4g}", loss); }));
  cells.push_back(
      cell_of(result.bubble, [](double bubble) { return fmt::format("{:.0f} %", 100 * bubble); }));
  cells.push_back(cell_of(result.memory, partitioning::short_bytes));
  cells.push_back(partitioning::short_seconds(run.seconds));
  return cells;
}

/// Returns the run that ended in good order with the shortest step; null if there is none.
const SweepRun* fastest_of(const Sweep& sweep) {
  const SweepRun* fastest = nullptr;
  for (const auto& run : sweep.runs) {
    if (!run.failure.empty() || !run.result.step_seconds) continue;
    if (fastest == nullptr || *run.result.step_seconds < *fastest->result.step_seconds) {
      fastest = &run;
    }
  }
  return fastest;
}

std::string settings_text(const Sweep& sweep, const SweepRun& run) {
  std::string text;
  for (std::size_t i = 0; i < sweep.keys.size(); ++i) {
    text += base::concat(i == 0 ? "" : ", ", sweep.keys[i], " ", run.values[i]);
  }
  return text;
}

/// Returns the heading of a setting's column in a CSV file, as its flag is called.
std::string setting_column(const std::string& key) { return key == "ranks" ? key : "smp." + key; }

template <class Number>
base::Json json_of(const std::optional<Number>& number) {
  if (!number) return nullptr;
  if constexpr (std::is_floating_point_v<Number>) {
    if (!std::isfinite(*number)) return fmt::format("{}", *number);
  }
  return *number;
}

/// Returns the members of a run in the order of the columns of the CSV file.
base::Json json_of(const Sweep& sweep, const SweepRun& run) {
  base::Json settings = base::Json::object(), rates = base::Json::object();
  for (std::size_t i = 0; i < sweep.keys.size(); ++i) settings[sweep.keys[i]] = run.values[i];
  for (const auto& name : rates_of(sweep)) {
    rates[name] = json_of(number_named(run.result.rates, name));
  }
  return {{kSettings, settings},
          {"step_seconds", json_of(run.result.step_seconds)},
          {"rates", rates},
          {"loss", json_of(run.result.loss)},
          {"bubble", json_of(run.result.bubble)},
          {"memory_bytes", json_of(run.result.memory)},
          {"job_seconds", run.seconds},
          {"failure", run.failure.empty() ? base::Json() : base::Json(run.failure)},
          {"folder", run.folder.empty() ? base::Json() : base::Json(run.folder)},
          {"log", run.log}};
}

}  // namespace

RunResult result_of(const RunFacts& facts) {
  RunResult result{.step_seconds = median_of(facts, "step_seconds"),
                   .bubble = median_of(facts, "bubble"),
                   .loss = last_of(facts, "loss"),
                   .memory = peak_memory(facts),
                   .rates = {}};
  for (const auto& [name, values] : facts.numbers) {
    const auto shown = rate_name(name);
    const auto median = shown.empty() ? std::nullopt : median_of(facts, name);
    if (median) result.rates.emplace_back(shown, *median);
  }
  return result;
}

std::string sweep_table(const Sweep& sweep, int width) {
  const auto rates = rates_of(sweep);
  std::vector<partitioning::TextTable::Column> columns;
  for (const auto& key : sweep.keys) columns.push_back({key});
  columns.push_back({"a step", true});
  for (const auto& rate : rates) columns.push_back({rate, true});
  for (const char* const title : {"loss", "bubble", "memory", "whole job"}) {
    columns.push_back({title, true});
  }
  partitioning::TextTable table(std::move(columns));
  for (const auto& run : sweep.runs) {
    table.add_row(cells_of(run, rates));
    if (!run.failure.empty()) table.add_note("failed: " + run.failure, 1);
  }
  auto text = table.finish(width);
  if (const auto* const fastest = fastest_of(sweep); fastest != nullptr && sweep.runs.size() > 1) {
    text += base::concat("fastest: ", settings_text(sweep, *fastest), "\n");
  }
  return text;
}

std::string sweep_to_csv(const Sweep& sweep) {
  std::string lines;
  for (const auto& run : sweep.runs) {
    base::Json row = base::Json::object();
    const auto all = json_of(sweep, run);
    for (const auto& [name, value] : all.items()) {
      if (name == kSettings) {  // one of them is called loss
        for (const auto& [key, text] : value.items()) row[setting_column(key)] = text;
      } else if (value.is_object()) {
        row.update(value);
      } else {
        row[name] = value;
      }
    }
    for (auto& value : row) {
      if (value.is_null()) value = "";
    }
    lines += base::json_text(row) + "\n";
  }
  return metrics_to_csv(lines);
}

std::string sweep_to_json(const Sweep& sweep) {
  base::Json runs = base::Json::array();
  for (const auto& run : sweep.runs) runs.push_back(json_of(sweep, run));
  const base::Json json = {{"format", "smp-sweep"}, {"version", 1}, {"runs", std::move(runs)}};
  return json.dump(2, ' ', false, base::Json::error_handler_t::replace) + "\n";
}

}  // namespace smp::report
