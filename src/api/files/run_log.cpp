// api/files/run_log.cpp: rank 0 writes, the others send it their times.
#include "smp/run_log.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <utility>

#include "alive/farewell.h"
#include "alive/writing.h"
#include "api/files/run_measures.h"
#include "api/files/runs_folder.h"
#include "api/model/model_state.h"
#include "api/planning/plan_decision.h"
#include "api/rank/exchange.h"
#include "api/rank/public_call.h"
#include "api/rank/rank.h"
#include "api/rank/rank_device.h"
#include "api/rank/recorded_run.h"
#include "api/rank/session_parts.h"
#include "api/state/session_state.h"
#include "base/check.h"
#include "base/files.h"
#include "base/forked_child.h"
#include "base/log.h"
#include "base/memory/mapped_file.h"
#include "d2d/tensors/tensor_bytes.h"
#include "report/analysis/trace_file.h"
#include "report/export/event_file.h"
#include "report/folder/continued_run.h"
#include "report/folder/run_folder.h"
#include "report/folder/split_table.h"
#include "report/pictures/memory_use.h"
#include "report/pictures/traffic.h"
#include "schedule/trace_ring.h"
#include "smp/distributed_model.h"
#include "smp/version.h"

namespace smp {
namespace {

using base::concat;

constexpr int kWriter = 0;  // rank
/// Number of measure() calls after which the clocks are read again, because clocks of machines
/// drift apart by some microseconds a second.
constexpr std::int64_t kStepsOfAClock = 64;
/// Number of records in a rank's ring file, for what must survive the rank: 2.6 MB, several steps
/// of most models.
constexpr std::size_t kRingRecords = std::size_t{1} << 16;

/// Returns "20261121-140509" for "2026-11-21T14:05:09Z".
std::string file_time(const std::string& utc) {
  std::string digits;
  for (const char c : utc) {
    if (c >= '0' && c <= '9') digits += c;
    if (c == 'T') digits += '-';
  }
  return digits;
}

/// Makes a new folder, also if another run of that name starts in the same second.
std::string make_folder(const std::string& parent, const std::string& name,
                        const std::string& utc) try {
  base::create_directories(parent);
  const std::string wanted = concat(parent, "/", name, "-", file_time(utc));
  std::string folder = wanted;
  for (int number = 2; !base::create_new_directory(folder); ++number) {
    folder = concat(wanted, "-", number);
  }
  return folder;
} catch (const ResourceError& error) {
  throw ResourceError(concat(error.what(),
                             "; start the program in a folder where it may write, or name one in "
                             "smp::RunLogOptions::parent_folder"));
}

double seconds_since_1970() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

struct RunLog::State {
  /// What the writer of the run has open.
  struct Writer {
    std::optional<base::AppendFile> metrics = {}, events = {};
    std::optional<base::Farewell> farewell = {};
  };
  struct Lines {
    std::int64_t of_earlier_job = 0;
    std::int64_t own = 0;

    std::int64_t all() const { return of_earlier_job + own; }
  };
  /// What there was when the run began.
  struct Before {
    d2d::ChannelCounters traffic = {};
    std::int64_t steps = 0;
    std::int64_t memory = 0;  // of tensors, without the model
  };
  /// What a killed run leaves of this rank.
  struct Ring {
    std::optional<base::MappedFile> file = {};
    std::optional<schedule::TraceRing> records = {};
  };

  const base::MadeHere made_here = {};
  Rank& rank;
  SessionState& session;
  const DistributedModelBase& model;
  std::string folder = {};
  Writer writer = {};  // on the writer
  std::optional<StepTiming> timing = {};
  Lines lines = {};
  bool plan_written = false;
  std::size_t splits_written = 0;
  bool finished = false;
  bool complete = true;  // so far; a line after one that is missing or torn would mislead
  Before before = {};
  ClockOffset clock = {};
  std::int64_t measured = 0;
  Ring ring = {};
  std::vector<partitioning::RunRecord::Route> routes = {};

  ~State() {
    if (ring.records) rank.server().recorder().write_to(nullptr);
  }

  /// True if this rank is a stage of the model's first replica, whose steps are recorded.
  bool of_first_pipeline() const {
    return rank.groups().of(Group::kPp).members()[0] == GlobalRank(kWriter);
  }
  bool writes() const { return rank.topology().rank() == kWriter && !rank.parts().plan_request; }
  std::string file(const std::string& name) const { return concat(folder, "/", name); }
  std::string own_ring() const { return file(report::ring_file(rank.topology().pp_rank())); }

  void start(const std::string& name, const RunLogOptions& options) {
    SMP_REQUIRE(options.lines_before >= 0, "rank ", rank.topology().rank(),
                ": RunLogOptions::lines_before is ", options.lines_before,
                "; give it how often the job before called append()");
    char buffer[32];
    const std::string utc = base::utc_timestamp(buffer);
    lines.of_earlier_job = options.lines_before;
    const auto computing = gather_computing(rank);
    routes = gather_routes(rank);
    // What fails there fails on all ranks: they would wait for the writer.
    folder = decided_by_first_rank(rank, [&] {
               if (writes()) open_files(name, utc, options, computing);
               return std::vector{folder};
             }).front();
    if (!writes()) return;
    base::log(base::LogLevel::kInfo, "what this run leaves behind is in ", folder);
    writer.farewell.emplace("smp: asked to end; the numbers of ",
                            concat(" steps are in ", folder, "/", report::kMetricsFile,
                                   ", and `smp report ", folder, "` draws what else there is"));
  }

  void open_files(const std::string& name, const std::string& utc, const RunLogOptions& options,
                  const std::vector<report::ComputingRanks>& computing) {
    const char* const wanted = std::getenv(kRunsFolderVariable);
    auto started = utc;
    if (wanted != nullptr || options.continues.empty()) {
      folder = make_folder(wanted != nullptr ? wanted : options.parent_folder, name, utc);
    } else {
      folder = options.continues;
      started = report::continue_run(folder, lines.of_earlier_job);
    }
    base::write_file(file(report::kRunFile), description(name, started, options, computing));
    writer.metrics.emplace(file(report::kMetricsFile));
    const bool has_curves = base::file_exists(file(report::kEventFile));
    writer.events.emplace(file(report::kEventFile));
    if (!has_curves) writer.events->append(report::event_file_header(seconds_since_1970()));
    write_plan();
  }

  std::string description(const std::string& name, const std::string& started,
                          const RunLogOptions& options,
                          const std::vector<report::ComputingRanks>& computing) const {
    report::RunDescription made;
    made.name = name;
    made.started = started;
    made.smp_version = SMP_VERSION;
    made.torch_version = SMP_TORCH_VERSION;
    made.world_size = rank.topology().size();
    made.loss_unit = options.loss_unit;
    if (options.loss_baseline) {
      made.baseline = report::Baseline{*options.loss_baseline, options.loss_baseline_name};
    }
    made.computing = computing;
    made.configuration = rank.parts().config.to_json();
    return report::description_to_json(made);
  }

  /// Writes the plan as soon as there is one.
  void write_plan() {
    if (plan_written || !writes() || !model.partitioned()) return;
    const auto run = run_record(rank, model.plan(), routes);
    report::write_plan(folder, model.plan(), simulation_of(model), &run);
    base::write_file(file(report::kModulesFile), report::modules_to_json(module_paths()));
    plan_written = true;
  }

  /// Writes how steps split their arguments, if there is news.
  void write_splits() {
    const auto& splits = session.splits();
    if (splits_written == splits.size() || !writes()) return;
    base::write_file(file(report::kArgumentsFile), report::split_steps_to_json(splits));
    splits_written = splits.size();
  }

  using Line = std::vector<std::pair<std::string, double>>;

  /// Adds to `line` what a scaler of losses has come to, unless the program gives it by itself.
  void add_loss_scale(Line& line) const {
    const auto& scale = session.loss_scale();
    if (!scale) return;
    const auto add = [&](const char* name, double value) {
      const bool given = std::any_of(line.begin(), line.end(),
                                     [&](const auto& item) { return item.first == name; });
      if (!given) line.emplace_back(name, value);
    };
    add("loss_scale", scale->factor);
    add("skipped_steps", static_cast<double>(scale->skipped_steps));
  }

  /// Appends a line to the metrics. @param line  begins with the step
  void append(const Line& line) {
    if (!complete) return;
    write_if_possible([&] {
      write_plan();
      write_splits();
      writer.metrics->append_line(report::metrics_line(line));
      writer.farewell->set_count(lines.own);
      const Line curves(line.begin() + 1, line.end());
      writer.events->append(report::event_record(seconds_since_1970(), lines.all(), curves));
    });
  }

  /// Starts to record steps. A run goes on if it cannot be done. @throws nothing
  void start_recording() {
    auto& recorder = rank.server().recorder();
    recorder.enable(true);
    if (!of_first_pipeline() || rank.parts().plan_request) return;
    try {
      base::create_directories(folder);  // of another machine
      ring.file.emplace(own_ring(), schedule::TraceRing::bytes_for(kRingRecords));
      ring.records.emplace(ring.file->bytes(), rank.topology().pp_rank(),
                           rank.server().core().options.oversubscribed);
      recorder.write_to(&*ring.records);
    } catch (const std::exception& error) {
      session.warnings().note("a killed run will have no timeline: " + of_all_ranks(error.what()));
    }
  }

  /// Reads the offset of this rank's clock. Collective.
  void read_clock() {
    clock = clock_of(rank);
    if (ring.records) ring.records->set_clock_offset(clock.offset);
  }

  /// Returns a message about this rank's file as one that other ranks would give too.
  std::string of_all_ranks(std::string text) const {
    const auto at = text.find(own_ring());
    if (at != std::string::npos) text.replace(at, own_ring().size(), file("rank-*.ring"));
    return text;
  }

  void stop_recording() {
    auto& recorder = rank.server().recorder();
    recorder.enable(false);
    recorder.write_to(nullptr);
    ring.records.reset();
    ring.file.reset();
  }

  /// Runs `action`. A run is worth more than its log, so what cannot be written is warned about
  /// once.
  template <class Action>
  void write_if_possible(Action action) {
    try {
      action();
    } catch (const Error& error) {
      if (std::exchange(complete, false)) {
        base::log(base::LogLevel::kWarning, "the run goes on, its log in ", folder,
                  " is incomplete from step ", lines.all(), " on: ", error.what());
      }
    }
  }

  std::int64_t steps() const { return rank.server().core().port.step(); }
  /// False if this job ran no step: what the folder holds of others' steps stays.
  bool trained() const { return steps() > before.steps; }

  /// Writes the messages of all stages, on the writer. Collective.
  void write_traffic() {
    const auto traffic = gather_traffic(rank, before.traffic, steps() - before.steps);
    if (!writes() || traffic.steps == 0 || traffic.size() == 1) return;
    write_if_possible(
        [&] { base::write_file(file(report::kTrafficFile), report::traffic_to_json(traffic)); });
  }

  /// Writes the memory of all stages, on the writer: the most bytes of tensors that each held at
  /// once since the first measure(). 0: nothing counts those of its device. Collective.
  void write_memory() {
    const auto tensors = d2d::tensor_bytes(memory_device(rank.parts().device));
    const auto own = tensors ? std::max<std::int64_t>(0, tensors->most - before.memory) : 0;
    const auto stages = gather_values(rank.groups().of(Group::kPp), own, "memory of the stages");
    if (!writes() || !trained()) return;
    write_if_possible(
        [&] { base::write_file(file(report::kMemoryFile), report::memory_use_to_json(stages)); });
  }

  std::vector<std::string> module_paths() const {
    std::vector<std::string> paths;
    const auto& modules = rank.server().modules();
    paths.reserve(modules.size());
    for (int id = 0; id < static_cast<int>(modules.size()); ++id) {
      paths.emplace_back(modules.path(server::ModuleId{id}));
    }
    return paths;
  }
};

RunLog::RunLog(const std::string& name, const DistributedModelBase& model,
               const RunLogOptions& options)
    : state_(
          new State{.rank = Rank::current(), .session = SessionState::current(), .model = model}) {
  const PublicCall call("smp::RunLog");
  state_->start(name, options);
  state_->start_recording();
  state_->read_clock();
  state_->session.warnings().meet(state_->rank.groups().of(Group::kPp));
  state_->before.traffic = state_->rank.channel().counters();
  const auto device = memory_device(state_->rank.parts().device);
  const auto tensors = d2d::tensor_bytes(device).value_or(d2d::TensorBytes());
  state_->before.memory = tensors.live - weights_of(model, device);
  state_->before.steps = state_->steps();
}

RunLog::~RunLog() {
  if (!state_->made_here.is_here()) {  // the parent's
    static_cast<void>(state_.release());
    return;
  }
  if (state_->finished) return;
  state_->stop_recording();
  if (!state_->writes()) return;
  const base::Writing writing;
  try {
    report::draw_run(state_->folder);
  } catch (const std::exception& error) {
    base::log(base::LogLevel::kWarning, "pictures of the run: ", error.what());
  }
}

const std::string& RunLog::folder() const noexcept { return state_->folder; }

StepTiming RunLog::measure() {
  const PublicCall call("smp::RunLog::measure");
  auto& state = *state_;
  const server::BetweenSteps recorded(state.rank.server().recorder(), schedule::Phase::kOther);
  // Until the first step each rank held the whole model.
  if (state.measured == 0) d2d::forget_most_tensor_bytes(memory_device(state.rank.parts().device));
  if (state.measured++ % kStepsOfAClock == 0) state.read_clock();
  const auto own = without_details(state.session.last_trace());
  state.timing = timing_of(gather_traces(state.rank, own, state.clock).ranks);
  return *state_->timing;
}

void RunLog::append(const std::vector<std::pair<std::string, double>>& numbers) {
  SMP_REQUIRE(
      !state_->finished, "rank ", state_->rank.topology().rank(),
      ": RunLog::append() after finish(), which has drawn what there was; append before it");
  if (!state_->writes()) return;
  ++state_->lines.own;
  std::vector<std::pair<std::string, double>> line = {
      {"step", static_cast<double>(state_->lines.all())}};
  line.insert(line.end(), numbers.begin(), numbers.end());
  if (state_->timing) {
    line.emplace_back("step_seconds", state_->timing->seconds);
    line.emplace_back("bubble", state_->timing->bubble);
  }
  state_->add_loss_scale(line);
  state_->append(line);
}

std::vector<std::string> RunLog::finish() {
  const PublicCall call("smp::RunLog::finish");
  const base::Writing writing;
  auto timeline =
      gather_traces(state_->rank, state_->session.pictured_trace(), clock_of(state_->rank));
  timeline.module_paths = state_->module_paths();
  state_->write_traffic();
  state_->write_memory();
  const bool records_ring = state_->ring.file.has_value();
  state_->stop_recording();
  if (records_ring) base::remove_file(state_->own_ring());
  state_->finished = true;
  state_->writer.farewell.reset();
  if (!state_->writes()) return {};
  std::vector<std::string> pictures;
  state_->write_if_possible([&] {
    state_->write_plan();
    state_->write_splits();
    if (state_->trained()) {
      base::write_file(state_->file(report::kTraceFile), report::trace_to_json(timeline));
    }
    pictures = report::draw_run(state_->folder);
  });
  return pictures;
}

}  // namespace smp
