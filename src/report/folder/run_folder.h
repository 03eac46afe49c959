// report/folder/run_folder.h: the files of a run, and pictures drawn from them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "partition/plan/run_record.h"
#include "report/analysis/step_timeline.h"
#include "report/folder/metrics_line.h"
#include "report/pictures/loss_chart.h"
#include "smp/plan.h"

namespace smp::report {

/// The names of files within a run folder; README.md of this layer describes them.
inline constexpr const char* kRunFile = "run.json";
inline constexpr const char* kPlanFile = "plan.json";
inline constexpr const char* kMetricsFile = "metrics.jsonl";
inline constexpr const char* kMetricsTable = "metrics.csv";
inline constexpr const char* kEventFile = "events.out.tfevents.smp";
inline constexpr const char* kTraceFile = "trace.json";
inline constexpr const char* kTrafficFile = "traffic.json";
inline constexpr const char* kMemoryFile = "memory.json";
inline constexpr const char* kModulesFile = "modules.json";
inline constexpr const char* kArgumentsFile = "arguments.json";
inline constexpr const char* kSimulationFile = "trace-simulated.json";
inline constexpr const char* kLossPicture = "loss.svg";
inline constexpr const char* kTimelinePicture = "timeline.svg";
inline constexpr const char* kPartitionPicture = "partition.svg";
inline constexpr const char* kMemoryPicture = "memory.svg";
inline constexpr const char* kTrafficPicture = "traffic.svg";
inline constexpr const char* kSimulationPicture = "timeline-simulated.svg";
inline constexpr const char* kStepMemoryPicture = "memory-step.svg";
inline constexpr const char* kTimelinePage = "timeline.html";
inline constexpr const char* kReportPage = "report.html";
inline constexpr const char* kChromeTrace = "trace-chrome.json";

/// Returns the name of the file that a rank writes while it works (schedule/trace_ring.h):
/// "rank-2.ring".
std::string ring_file(int pp_rank);
/// Returns the content of kModulesFile: the paths of modules by Span::module.
std::string modules_to_json(const std::vector<std::string>& paths);

/// Ranks that compute with the same number of threads on the same processor: the last bits of
/// results depend on both.
struct ComputingRanks {
  std::string ranks;  ///< "ranks 0-3"
  int threads = 1;    ///< of each, within an operator
  std::string processor;
};

/// Returns "ranks 0-3 computed with 2 threads each on Intel(R) Xeon(R) Processor (AVX512)".
std::string computing_text(const std::vector<ComputingRanks>& computing);

/// The description of a run, as run.json holds it.
struct RunDescription {
  std::string name;
  std::string started;  ///< UTC
  std::string smp_version;
  std::string torch_version;
  int world_size = 1;
  std::string loss_unit;  ///< "nats per byte"; may be empty
  std::optional<Baseline> baseline;
  std::vector<ComputingRanks> computing = {};  ///< empty in files of older versions
  std::string configuration;                   ///< JSON object of the resolved configuration
};

std::string description_to_json(const RunDescription& description);
/// Reads what description_to_json() wrote.
/// @throws UsageError  `text`, of the file `name`, is something else
RunDescription description_from_json(const std::string& text, const std::string& name);

/// Returns (step, loss) for every line that has a "step" and a "loss". A broken last line, as a
/// killed run leaves it, is passed over.
/// @throws UsageError  a broken line elsewhere.
std::vector<Point> losses_of(const std::string& metrics, const std::string& name);

/// Writes a plan to `folder`, and the step that was simulated for it, so that draw_run() draws
/// their pictures.
/// @param simulation  as trace_to_json() makes it; empty if there is none
/// @param run         how the run trains, for the plan's file; nullptr: not known
/// @throws ResourceError  a file cannot be written.
void write_plan(const std::string& folder, const PartitionPlan& plan, const std::string& simulation,
                const partitioning::RunRecord* run = nullptr);

/// Draws what the files of `folder` allow, and returns the paths of the pictures and of the pages,
/// the report last. For a run that was killed, or still runs, it first writes the step in which the
/// ranks were last heard of, as kTraceFile.
/// @throws UsageError     it is no run folder, or one of its files is broken.
/// @throws ResourceError  a picture cannot be written.
std::vector<std::string> draw_run(const std::string& folder);

/// Reads kRunFile of a folder; a plan alone has none, and then nothing of it is known.
/// @throws UsageError  the file is broken.
RunDescription describe_run(const std::string& folder);

/// Returns a summary of the run in `folder` for a terminal (run_summary.h); empty if its files say
/// nothing yet. @param width  of the terminal, in columns
/// @throws UsageError  one of its files is broken.
std::string summarise_run(const std::string& folder, int width = 100);

/// Writes the last recorded step of a run, or the simulated one of a plan, for viewers of traces
/// (chrome_trace.h), and returns the path.
/// @param file  the path to write to; empty: a file in the folder
/// @throws UsageError     the folder holds no step, or its file is broken.
/// @throws ResourceError  the file cannot be written.
std::string export_trace(const std::string& folder, const std::string& file);

}  // namespace smp::report
