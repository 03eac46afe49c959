// report/folder/run_comparison.cpp: tables that the terminal and the page share.
#include "report/folder/run_comparison.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "base/files.h"
#include "config/json.h"
#include "partition/text/short_text.h"
#include "partition/text/text_table.h"
#include "report/analysis/idle_time.h"
#include "report/analysis/step_arrows.h"
#include "report/analysis/trace_file.h"
#include "report/folder/find_runs.h"
#include "report/folder/run_folder.h"
#include "report/page/html_page.h"
#include "report/pictures/loss_chart.h"
#include "report/pictures/timeline_page.h"

namespace smp::report {
namespace {

using base::concat;
using Rows = std::vector<std::vector<std::string>>;

constexpr const char* kAbsent = "-";
constexpr std::size_t kMostMoves = 20;  // of modules that are listed

/// A table whose first row holds its headings, and what is said below it.
struct ComparisonTable {
  Rows rows;
  std::string note;

  bool empty() const { return rows.size() <= 1 && note.empty(); }
};

Rows headed(const std::string& what, const ComparedRun& first, const ComparedRun& second,
            const char* last = nullptr) {
  Rows rows = {{what, first.name, second.name}};
  if (last != nullptr) rows.front().emplace_back(last);
  return rows;
}

/// Returns "-12.0 %", by which `second` is more or less than `first`.
std::string change(double first, double second) {
  if (!std::isfinite(first) || !std::isfinite(second) || first == 0) return "";
  return fmt::format("{:+.1f} %", 100 * (second / first - 1));
}

/// A row of numbers, if one of the runs has it.
template <class Format>
void add_row(Rows& rows, const std::string& name, std::optional<double> first,
             std::optional<double> second, Format format) {
  if (!first && !second) return;
  rows.push_back({name, first ? format(*first) : kAbsent, second ? format(*second) : kAbsent, ""});
}

/// The same, and by how much they differ.
template <class Format>
void add_numbers(Rows& rows, const std::string& name, std::optional<double> first,
                 std::optional<double> second, Format format) {
  add_row(rows, name, first, second, format);
  if (first && second) rows.back().back() = change(*first, *second);
}

std::string as_count(double number) { return fmt::format("{:.0f}", number); }
std::string as_loss(double number) { return fmt::format("{:.6g}", number); }
std::string as_share(double number) { return fmt::format("{:.0f} %", 100 * number); }
std::string as_bytes(double number) {
  return partitioning::short_bytes(static_cast<std::int64_t>(number));
}

std::optional<double> loss_at(const ComparedRun& run, bool last) {
  if (run.losses.empty()) return std::nullopt;
  return last ? run.losses.back().y : run.losses.front().y;
}

std::optional<double> memory_of(const ComparedRun& run, std::size_t stage) {
  const auto& stages = run.facts.memory;
  if (stage >= stages.size() || stages[stage] == 0) return std::nullopt;
  return static_cast<double>(stages[stage]);
}

std::optional<double> planned_seconds(const ComparedRun& run) {
  if (!run.facts.plan || !run.facts.plan->summary()) return std::nullopt;
  const auto& summary = *run.facts.plan->summary();
  if (summary.costs == "counts") return std::nullopt;
  return summary.chosen.step_seconds;
}

/// Tells how far the losses of the steps that both runs have are apart.
std::string losses_note(const ComparedRun& first, const ComparedRun& second) {
  std::map<double, double> others;
  for (const auto& point : second.losses) others[point.x] = point.y;
  std::size_t common = 0;
  double worst = 0, at = 0;
  for (const auto& point : first.losses) {
    const auto other = others.find(point.x);
    if (other == others.end()) continue;
    ++common;
    if (point.y == other->second || (std::isnan(point.y) && std::isnan(other->second))) continue;
    if (!std::isfinite(point.y) || !std::isfinite(other->second)) {
      return fmt::format("In step {:.0f} the losses are {:.6g} and {:.6g}.", point.x, point.y,
                         other->second);
    }
    const double size = std::max(std::abs(point.y), std::abs(other->second));
    const double apart = std::abs(point.y - other->second) / size;
    if (apart > worst) std::tie(worst, at) = std::pair(apart, point.x);
  }
  if (common == 0) return {};
  const auto steps =
      common == 1 ? std::string("step that both have") : concat(common, " steps that both have");
  if (worst == 0) return concat("The losses of the ", steps, " are the same numbers.");
  return concat("The losses of the ", steps, " differ by at most ",
                fmt::format("{:.1e} of their size, in step {:.0f}", worst, at), ".");
}

ComparisonTable numbers_table(const ComparedRun& first, const ComparedRun& second) {
  ComparisonTable table{headed("", first, second, "change"), losses_note(first, second)};
  auto& rows = table.rows;
  add_row(rows, "ranks", first.facts.world_size, second.facts.world_size, as_count);
  add_row(rows, "steps", first.facts.steps, second.facts.steps, as_count);
  add_numbers(rows, "loss in the first step", loss_at(first, false), loss_at(second, false),
              as_loss);
  add_numbers(rows, "loss in the last step", loss_at(first, true), loss_at(second, true), as_loss);
  const auto add_medians = [&](const std::string& name, const char* title, auto format) {
    add_numbers(rows, title, median_of(first.facts, name), median_of(second.facts, name), format);
  };
  add_medians("step_seconds", "a step", partitioning::short_seconds);
  add_numbers(rows, "a step, as planned", planned_seconds(first), planned_seconds(second),
              partitioning::short_seconds);
  add_row(rows, "bubble", median_of(first.facts, "bubble"), median_of(second.facts, "bubble"),
          as_share);
  auto names = first.facts.numbers;
  names.insert(names.end(), second.facts.numbers.begin(), second.facts.numbers.end());
  std::vector<std::string> shown;
  for (const auto& [name, values] : names) {
    const auto rate = rate_name(name);
    if (rate.empty() || std::find(shown.begin(), shown.end(), rate) != shown.end()) continue;
    shown.push_back(rate);
    add_medians(name, rate.c_str(), as_count);
  }
  const auto stages = std::max(first.facts.memory.size(), second.facts.memory.size());
  for (std::size_t stage = 0; stage < stages; ++stage) {
    add_numbers(rows, concat("memory of stage ", stage), memory_of(first, stage),
                memory_of(second, stage), as_bytes);
  }
  return table;
}

/// The mean of all ranks in each class of time.
std::vector<double> mean_times(const ComparedRun& run) {
  std::vector<double> means(kTimeClasses.size());
  if (!run.step || run.step->ranks.empty()) return means;
  const auto idle = idle_time(*run.step, arrows_of(*run.step));
  for (std::size_t i = 0; i < means.size(); ++i) {
    for (const auto& rank : idle.ranks) {
      means[i] += static_cast<double>(rank.*kTimeClasses[i].time) /
                  static_cast<double>(idle.ranks.size()) / base::kSecond;
    }
  }
  return means;
}

ComparisonTable times_table(const ComparedRun& first, const ComparedRun& second) {
  ComparisonTable table{headed("of the recorded step", first, second, "change"), ""};
  const auto of_first = mean_times(first), of_second = mean_times(second);
  for (std::size_t i = 0; i < kTimeClasses.size(); ++i) {
    if (of_first[i] == 0 && of_second[i] == 0) continue;
    add_numbers(table.rows, kTimeClasses[i].name, of_first[i], of_second[i],
                partitioning::short_seconds);
  }
  if (table.rows.size() > 1) {
    table.note =
        "Means of the ranks, in the step that was recorded last, and since the step before.";
  }
  return table;
}

/// Returns the values of a configuration by key.
std::map<std::string, std::string> settings_of(const ComparedRun& run) {
  std::map<std::string, std::string> settings;
  if (run.configuration.empty()) return settings;
  const auto json = base::parse_json(run.configuration, run.name);
  for (const auto& [key, entry] : json.items()) {
    if (!entry.is_object() || !entry.contains("value")) continue;
    const auto& value = entry["value"];
    settings[key] = value.is_string() ? value.get<std::string>() : base::json_text(value);
  }
  return settings;
}

ComparisonTable settings_table(const ComparedRun& first, const ComparedRun& second) {
  ComparisonTable table{headed("setting", first, second), ""};
  const auto of_first = settings_of(first), of_second = settings_of(second);
  auto all = of_first;
  all.insert(of_second.begin(), of_second.end());
  const auto value_of = [](const auto& settings, const std::string& key) {
    const auto found = settings.find(key);
    return found == settings.end() ? std::string(kAbsent) : found->second;
  };
  for (const auto& [key, value] : all) {
    const auto one = value_of(of_first, key), other = value_of(of_second, key);
    if (one != other) table.rows.push_back({key, one, other});
  }
  if (table.rows.size() == 1 && !all.empty()) table.note = "All settings have the same values.";
  return table;
}

/// The stage of every module, by path.
std::map<std::string, int> stages_of(const PartitionPlan& plan) {
  std::map<std::string, int> stages;
  for (const auto& row : plan.rows()) stages[row.path] = row.pp_rank;
  return stages;
}

/// Returns the modules that both plans have on different stages; of those that moved with their
/// parents only the parents.
Rows moves_between(const PartitionPlan& first, const PartitionPlan& second) {
  const auto stages = stages_of(second);
  std::map<std::string, std::pair<int, int>> moved;
  Rows rows;
  for (const auto& row : first.rows()) {
    const auto other = stages.find(row.path);
    if (other == stages.end() || other->second == row.pp_rank) continue;
    const std::pair move(row.pp_rank, other->second);
    moved[row.path] = move;
    const auto dot = row.path.rfind('.');
    const auto parent =
        moved.find(row.path.empty() || dot == std::string::npos ? "" : row.path.substr(0, dot));
    if (!row.path.empty() && parent != moved.end() && parent->second == move) continue;
    rows.push_back({row.path.empty() ? "the model itself" : row.path, concat("stage ", move.first),
                    concat("stage ", move.second)});
  }
  return rows;
}

ComparisonTable plan_table(const ComparedRun& first, const ComparedRun& second) {
  ComparisonTable table{headed("module", first, second), ""};
  if (!first.facts.plan || !second.facts.plan) return table;
  const auto &one = *first.facts.plan, &other = *second.facts.plan;
  auto moves = moves_between(one, other);
  const auto more = moves.size() > kMostMoves ? moves.size() - kMostMoves : 0;
  moves.resize(moves.size() - more);
  table.rows.insert(table.rows.end(), moves.begin(), moves.end());
  if (more > 0) table.note = concat("And ", more, " more modules live on another stage. ");
  if (one.model_hash() != other.model_hash()) {
    table.note += "The models differ: modules or parameters of one are not in the other.";
  } else if (moves.empty()) {
    table.note = concat("Both plans place every module alike, on ", one.pp_size(),
                        one.pp_size() == 1 ? " stage." : " stages.");
  }
  return table;
}

std::vector<ComparisonTable> tables_of(const ComparedRun& first, const ComparedRun& second) {
  return {numbers_table(first, second), times_table(first, second), settings_table(first, second),
          plan_table(first, second)};
}

std::string as_text(const ComparisonTable& table, int width) {
  std::string text;
  if (table.rows.size() > 1) {
    const auto columns = static_cast<int>(table.rows.front().size());
    std::vector<partitioning::TextTable::Column> heads;
    for (const auto& title : table.rows.front()) {
      heads.push_back({title, !heads.empty(), std::max(20, width / columns)});
    }
    partitioning::TextTable made(std::move(heads));
    for (auto row = table.rows.begin() + 1; row != table.rows.end(); ++row) made.add_row(*row);
    text = made.finish(width);
  }
  if (table.note.empty()) return text;
  for (const auto& line : partitioning::wrapped(table.note, width)) text += line + "\n";
  return text;
}

std::string name_of_folder(const std::string& folder) {
  auto path = std::filesystem::path(folder).lexically_normal();
  if (path.filename().empty()) path = path.parent_path();  // of "runs/a/"
  return path.filename().string();
}

}  // namespace

ComparedRun read_run(const std::string& folder) {
  const auto path_of = [&](const char* file) { return concat(folder, "/", file); };
  if (!base::file_exists(path_of(kRunFile))) {
    refuse_run(folder, concat("is no run's folder: it holds no ", kRunFile));
  }
  const auto description = describe_run(folder);
  ComparedRun run;
  run.name = name_of_folder(folder);
  run.facts = read_facts(folder);
  run.configuration = description.configuration;
  run.loss_unit = description.loss_unit;
  if (const auto path = path_of(kMetricsFile); base::file_exists(path)) {
    run.losses = losses_of(base::read_file(path), path);
  }
  if (const auto path = path_of(kTraceFile); base::file_exists(path)) {
    run.step = trace_from_json(base::read_file(path), path);
  }
  return run;
}

std::string comparison_text(const ComparedRun& first, const ComparedRun& second, int width) {
  std::string text;
  for (const auto& table : tables_of(first, second)) {
    if (!table.empty()) text += (text.empty() ? "" : "\n") + as_text(table, width);
  }
  return text;
}

std::string draw_comparison(const ComparedRun& first, const ComparedRun& second) {
  HtmlPage page(concat(first.name, " beside ", second.name));
  const auto tables = tables_of(first, second);
  for (const auto& table : tables) {
    if (table.rows.size() > 1) page.table(table.rows);
    if (!table.note.empty()) page.paragraph(table.note);
    if (&table != &tables.front() || (first.losses.empty() && second.losses.empty())) continue;
    page.picture(draw_losses({{first.name, first.losses}, {second.name, second.losses}}, "Losses",
                             first.loss_unit == second.loss_unit ? first.loss_unit : ""));
  }
  for (const auto* const run : {&first, &second}) {
    if (!run->step) continue;
    page.heading(concat("One step of ", run->name));
    add_timeline(page, *run->step);
  }
  return std::move(page).finish();
}

std::pair<std::string, std::string> compare_runs(const std::string& first,
                                                 const std::string& second, std::string page,
                                                 int width) {
  auto one = read_run(first), other = read_run(second);
  if (page.empty()) page = concat(second, "/compared-with-", one.name, ".html");
  if (one.name == other.name) std::tie(one.name, other.name) = std::tie(first, second);
  base::write_file(page, draw_comparison(one, other));
  return {comparison_text(one, other, width), page};
}

}  // namespace smp::report
