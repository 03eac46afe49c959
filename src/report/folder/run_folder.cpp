// report/folder/run_folder.cpp: reads what a run left behind.
#include "report/folder/run_folder.h"

#include <cmath>
#include <cstdio>
#include <limits>
#include <sstream>

#include "base/check.h"
#include "base/files.h"
#include "config/json.h"
#include "report/analysis/trace_file.h"
#include "report/analysis/unfinished_step.h"
#include "report/export/chrome_trace.h"
#include "report/export/metrics_table.h"
#include "report/folder/find_runs.h"
#include "report/folder/report_page.h"
#include "report/folder/run_facts.h"
#include "report/folder/run_summary.h"
#include "report/folder/split_table.h"
#include "report/pictures/memory_picture.h"
#include "report/pictures/memory_table.h"
#include "report/pictures/partition_picture.h"
#include "report/pictures/step_memory_picture.h"
#include "report/pictures/timeline.h"
#include "report/pictures/timeline_page.h"
#include "report/pictures/traffic.h"

namespace smp::report {
namespace {

using base::concat;
using base::Json;
using base::json_member;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::string in(const std::string& folder, const char* file) { return concat(folder, "/", file); }

std::optional<Point> loss_of(const NamedNumbers& line) {
  const auto step = number_named(line, "step");
  const auto loss = number_named(line, "loss");
  constexpr double kMost = 1e300;  // so that no difference of two is infinite
  if (!step || !loss || !(std::abs(*step) <= kMost)) return std::nullopt;
  if (std::isfinite(*loss) && std::abs(*loss) > kMost) return Point{*step, *loss * kInfinity};
  return Point{*step, *loss};
}

std::string chart_title(const RunDescription& description) {
  return concat("Loss of ", description.name, " on ", description.world_size,
                description.world_size == 1 ? " rank" : " ranks");
}

std::string facts_of(const RunDescription& description) {
  if (description.name.empty()) return {};
  const auto computing = computing_text(description.computing);
  return concat("started ", description.started, " on ", description.world_size,
                description.world_size == 1 ? " rank" : " ranks", ", smp ", description.smp_version,
                ", LibTorch ", description.torch_version, computing.empty() ? "" : "; ", computing);
}

Json computing_to_json(const std::vector<ComputingRanks>& computing) {
  Json rows = Json::array();
  for (const auto& [ranks, threads, processor] : computing) {
    rows.push_back({{"ranks", ranks}, {"threads", threads}, {"processor", processor}});
  }
  return rows;
}

std::vector<ComputingRanks> computing_from_json(const Json& json, const std::string& name) {
  std::vector<ComputingRanks> computing;
  if (!json.contains("computing")) return computing;  // of an older version
  const Json rows = json_member<Json>(json, "computing", name);
  SMP_REQUIRE(rows.is_array(), name, ": \"computing\" must be an array");
  for (const auto& row : rows) {
    computing.push_back({json_member<std::string>(row, "ranks", name),
                         json_member<int>(row, "threads", name),
                         json_member<std::string>(row, "processor", name)});
  }
  return computing;
}

std::string short_text(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_number_float()) return base::json_text(value);
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", value.get<double>());
  return text;
}

/// Returns the names and values of the last whole line of metrics.jsonl.
std::vector<std::pair<std::string, std::string>> last_metrics(const std::string& metrics) {
  std::vector<std::pair<std::string, std::string>> numbers;
  std::string_view rest = metrics;
  while (!rest.empty() && numbers.empty()) {
    const auto before = rest.rfind('\n');
    const auto start = before == std::string_view::npos ? 0 : before + 1;
    const auto json = base::find_json(rest.substr(start));
    rest = rest.substr(0, start == 0 ? 0 : start - 1);
    if (!json || !json->is_object()) continue;
    for (const auto& [name, value] : json->get_ref<const Json::object_t&>()) {
      numbers.emplace_back(name, short_text(value));
    }
  }
  return numbers;
}

StepTimeline read_trace(const std::string& path) {
  return trace_from_json(base::read_file(path), path);
}

/// Reads the ring files of ranks 0, 1, ... until one is missing.
std::vector<std::vector<schedule::RingStep>> read_rings(const std::string& folder) {
  std::vector<std::vector<schedule::RingStep>> rings;
  for (;;) {
    const auto path = in(folder, ring_file(static_cast<int>(rings.size())).c_str());
    if (!base::file_exists(path)) return rings;
    rings.push_back(schedule::read_ring(base::read_file(path), path));
  }
}

std::vector<std::string> read_modules(const std::string& path) {
  if (!base::file_exists(path)) return {};
  const Json json = base::read_json(path);
  return json_member<std::vector<std::string>>(json, "modules", path);
}

/// Draws the pictures and pages of the files that a folder holds.
class RunPictures {
 public:
  explicit RunPictures(std::string folder) : folder_(std::move(folder)) {}

  std::vector<std::string> draw() {
    if (!has(kMetricsFile) && !has(kTraceFile) && !has(kPlanFile)) {
      refuse_run(folder_, concat("is no run folder: it holds none of ", kMetricsFile, ", ",
                                 kTraceFile, " and ", kPlanFile));
    }
    describe_run();
    if (has(kMetricsFile)) draw_metrics();
    find_unfinished_step();
    read_splits();
    read_plan();
    read_memory();
    if (has(kTraceFile)) draw_step();
    if (has(kTrafficFile)) draw_messages();
    if (plan_) draw_plan();
    if (report_.simulated) write(kSimulationPicture, draw_timeline(*report_.simulated));
    if (promise() != nullptr && has(kSimulationFile)) draw_memory_over_step();
    if (!written_.empty()) write(kReportPage, draw_report(report_));
    return std::move(written_);
  }

 private:
  bool has(const char* file) const { return base::file_exists(in(folder_, file)); }

  std::string write(const char* name, std::string text) {
    written_.push_back(in(folder_, name));
    base::write_file(written_.back(), text);
    return text;
  }

  void describe_run() {
    description_ = report::describe_run(folder_);
    report_.title = description_.name.empty() ? "A plan" : concat("Run ", description_.name);
    report_.facts = facts_of(description_);
    report_.configuration = description_.configuration;
  }

  void draw_metrics() {
    const std::string path = in(folder_, kMetricsFile);
    const std::string metrics = base::read_file(path);
    LossChart chart;
    chart.points = losses_of(metrics, path);
    chart.title = chart_title(description_);
    chart.unit = description_.loss_unit;
    chart.baseline = description_.baseline;
    if (!chart.points.empty()) report_.loss_picture = write(kLossPicture, draw_loss(chart));
    report_.metrics = last_metrics(metrics);
    const auto table = metrics_to_csv(metrics);
    if (!table.empty()) write(kMetricsTable, table);
  }

  /// Writes the trace of the step in which a killed run ended, out of the ranks' rings. A run that
  /// ended in good order has removed them.
  void find_unfinished_step() const {
    const auto step = unfinished_step(read_rings(folder_), read_modules(in(folder_, kModulesFile)));
    if (!step) return;
    require_sense(*step, in(folder_, "rank-*.ring"));
    base::write_file(in(folder_, kTraceFile), trace_to_json(*step));
  }

  /// Reads how steps split their arguments.
  void read_splits() {
    if (!has(kArgumentsFile)) return;
    const auto path = in(folder_, kArgumentsFile);
    report_.split_arguments = split_rows(split_steps_from_json(base::read_file(path), path));
  }

  /// Reads the plan and the step that was simulated for it, as far as there are files.
  void read_plan() {
    if (has(kPlanFile)) plan_ = PartitionPlan::read(in(folder_, kPlanFile));
    if (!has(kSimulationFile)) return;
    report_.simulated = read_trace(in(folder_, kSimulationFile));
    report_.simulated_bubble = promise() != nullptr ? promise()->chosen.bubble
                                                    : schedule::bubble(report_.simulated->ranks);
  }

  /// Reads the measured memory. A run that was killed, or still runs, has no such file.
  void read_memory() {
    if (!has(kMemoryFile)) return;
    const auto path = in(folder_, kMemoryFile);
    measured_ = memory_use_from_json(base::read_file(path), path);
    if (any_measured(measured_)) report_.measured_memory = memory_rows(measured_, promise());
  }

  /// The predictions of the plan; null if there are none.
  const PlanSummary* promise() const {
    return plan_ && plan_->summary() ? &*plan_->summary() : nullptr;
  }

  void draw_step() {
    report_.step = read_trace(in(folder_, kTraceFile));
    write(kTimelinePicture, draw_timeline(*report_.step));
    write(kTimelinePage, draw_timeline_page(*report_.step, report_.simulated_bubble));
  }

  void draw_messages() {
    const auto path = in(folder_, kTrafficFile);
    const auto traffic = traffic_from_json(base::read_file(path), path);
    report_.traffic_picture = write(kTrafficPicture, draw_traffic(traffic));
  }

  void draw_plan() {
    report_.plan_table = plan_->table();
    report_.partition_picture = write(kPartitionPicture, draw_partition(*plan_));
    if (promise() == nullptr) return;
    report_.memory_picture = write(kMemoryPicture, draw_memory(*plan_, measured_));
  }

  /// Simulates the planned step again. Files of older versions do not hold it; and a plan that
  /// was edited, or a schedule whose file is gone, leaves no step to draw.
  void draw_memory_over_step() {
    const auto path = in(folder_, kSimulationFile);
    const auto json = base::read_json(path);
    if (!json.contains(kStepMember)) return;
    const auto step = partitioning::PlannedStep::from_json(json[kStepMember].dump(), path);
    std::string picture;
    try {
      picture = draw_step_memory(*plan_, simulate_memory(*plan_, step));
    } catch (const UsageError&) {
      return;
    }
    write(kStepMemoryPicture, std::move(picture));
  }

  const std::string folder_;
  RunDescription description_;
  std::optional<PartitionPlan> plan_;
  MemoryUse measured_;
  RunReport report_;
  std::vector<std::string> written_;
};

}  // namespace

std::string ring_file(int pp_rank) { return concat("rank-", pp_rank, ".ring"); }

std::string modules_to_json(const std::vector<std::string>& paths) {
  return base::json_text({{"modules", paths}}) + "\n";
}

std::string description_to_json(const RunDescription& description) {
  Json json = {
      {"format", "smp-run"},
      {"version", 1},
      {"name", description.name},
      {"started", description.started},
      {"world_size", description.world_size},
      {"versions", {{"smp", description.smp_version}, {"torch", description.torch_version}}},
      {"loss_unit", description.loss_unit}};
  if (description.baseline) {
    json["loss_baseline"] = {{"value", description.baseline->value},
                             {"name", description.baseline->name}};
  }
  if (!description.computing.empty()) {
    json["computing"] = computing_to_json(description.computing);
  }
  json["configuration"] = Json::parse(description.configuration);
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

RunDescription description_from_json(const std::string& text, const std::string& name) {
  const Json json = base::parse_json(text, name);
  RunDescription description;
  description.name = json_member<std::string>(json, "name", name);
  description.started = json_member<std::string>(json, "started", name);
  description.world_size = json_member<int>(json, "world_size", name);
  const Json versions = json_member<Json>(json, "versions", name);
  description.smp_version = json_member<std::string>(versions, "smp", name);
  description.torch_version = json_member<std::string>(versions, "torch", name);
  description.loss_unit = json_member<std::string>(json, "loss_unit", name);
  if (json.contains("loss_baseline")) {
    const Json& baseline = json["loss_baseline"];
    description.baseline = Baseline{json_member<double>(baseline, "value", name),
                                    json_member<std::string>(baseline, "name", name)};
  }
  description.computing = computing_from_json(json, name);
  const Json configuration = json_member<Json>(json, "configuration", name);
  SMP_REQUIRE(configuration.is_object(), name, ": \"configuration\" must be an object");
  description.configuration = base::json_text(configuration);
  return description;
}

std::vector<Point> losses_of(const std::string& metrics, const std::string& name) {
  std::vector<Point> points;
  std::istringstream lines(metrics);
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (line.empty()) continue;
    const auto numbers = numbers_of(line);
    const bool torn = !numbers && lines.eof();
    if (torn) break;
    SMP_REQUIRE(numbers, name, ": line ", number, " is not JSON: ", base::excerpt(line));
    if (const auto point = loss_of(*numbers)) points.push_back(*point);
  }
  return points;
}

void write_plan(const std::string& folder, const PartitionPlan& plan, const std::string& simulation,
                const partitioning::RunRecord* run) {
  const auto text = run == nullptr ? plan.to_json() : partitioning::plan_text(plan, *run);
  base::write_file(in(folder, kPlanFile), text);
  if (!simulation.empty()) base::write_file(in(folder, kSimulationFile), simulation);
}

std::string computing_text(const std::vector<ComputingRanks>& computing) {
  std::string text;
  for (const auto& [ranks, threads, processor] : computing) {
    if (!text.empty()) text += "; ";
    text += concat(ranks, " computed with ", threads, threads == 1 ? " thread" : " threads",
                   ranks.starts_with("ranks") ? " each" : "", " on ", processor);
  }
  return text;
}

RunDescription describe_run(const std::string& folder) {
  const std::string path = in(folder, kRunFile);
  if (!base::file_exists(path)) return {};
  return description_from_json(base::read_file(path), path);
}

std::vector<std::string> draw_run(const std::string& folder) { return RunPictures(folder).draw(); }

std::string summarise_run(const std::string& folder, int width) {
  return run_summary(read_facts(folder), width);
}

std::string export_trace(const std::string& folder, const std::string& file) {
  for (const char* const trace : {kTraceFile, kSimulationFile}) {
    const auto path = in(folder, trace);
    if (!base::file_exists(path)) continue;
    const auto target = file.empty() ? in(folder, kChromeTrace) : file;
    base::write_file(target, to_chrome_trace(read_trace(path)));
    return target;
  }
  refuse_run(folder, concat("holds no step: neither ", kTraceFile, " nor ", kSimulationFile));
}

}  // namespace smp::report
