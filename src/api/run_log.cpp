// api/run_log.cpp: rank 0 writes, the others send it their times.
#include "smp/run_log.h"

#include <algorithm>
#include <chrono>

#include "api/exchange.h"
#include "api/model_state.h"
#include "api/runtime.h"
#include "base/check.h"
#include "base/files.h"
#include "base/log.h"
#include "report/event_file.h"
#include "report/run_folder.h"
#include "report/trace_file.h"
#include "smp/codec.h"
#include "smp/distributed_model.h"
#include "smp/version.h"

namespace smp {
namespace {

using base::concat;
using base::Nanoseconds;
using schedule::Span;
using schedule::StepTrace;

constexpr int kWriter = 0;  // rank

/// "2026-11-21T14:05:09Z" as "20261121-140509".
std::string file_time(const std::string& utc) {
  std::string digits;
  for (const char c : utc) {
    if (c >= '0' && c <= '9') digits += c;
    if (c == 'T') digits += '-';
  }
  return digits;
}

/// Makes a folder of its own, also if another run of that name starts in the same second.
std::string make_folder(const std::string& parent, const std::string& name,
                        const std::string& utc) {
  base::create_directories(parent);
  const std::string wanted = concat(parent, "/", name, "-", file_time(utc));
  std::string folder = wanted;
  for (int number = 2; !base::create_new_directory(folder); ++number) {
    folder = concat(wanted, "-", number);
  }
  return folder;
}

using Numbers = std::vector<std::int64_t>;

/// Of a span, and of an event of a request, on their way to rank 0.
constexpr std::size_t kSpanNumbers = 6, kEventNumbers = 4;

Numbers to_numbers(const StepTrace& trace) {
  Numbers numbers = {trace.pp_rank,        trace.step,
                     trace.start,          trace.end,
                     trace.oversubscribed, static_cast<std::int64_t>(trace.spans.size())};
  for (const Span& span : trace.spans) {
    numbers.insert(numbers.end(), {span.start, span.end, span.cpu, span.microbatch, span.module,
                                   static_cast<std::int64_t>(span.phase)});
  }
  for (const auto& event : trace.requests) {
    numbers.insert(numbers.end(), {event.time, event.caller, event.request,
                                   static_cast<std::int64_t>(event.kind)});
  }
  return numbers;
}

StepTrace to_trace(const Numbers& numbers) {
  StepTrace trace;
  trace.pp_rank = static_cast<int>(numbers.at(0));
  trace.step = numbers.at(1);
  trace.start = numbers.at(2);
  trace.end = numbers.at(3);
  trace.oversubscribed = numbers.at(4) != 0;
  std::size_t at = 6;
  for (auto left = numbers.at(5); left > 0; --left, at += kSpanNumbers) {
    trace.spans.push_back({numbers.at(at), numbers.at(at + 1), numbers.at(at + 2),
                           static_cast<std::int32_t>(numbers.at(at + 3)),
                           static_cast<std::int32_t>(numbers.at(at + 4)),
                           static_cast<schedule::Phase>(numbers.at(at + 5))});
  }
  for (; at < numbers.size(); at += kEventNumbers) {
    trace.requests.push_back({numbers.at(at), static_cast<std::int32_t>(numbers.at(at + 1)),
                              numbers.at(at + 2),
                              static_cast<schedule::RequestEvent::Kind>(numbers.at(at + 3))});
  }
  return trace;
}

std::vector<StepTrace> gather_traces(Runtime& runtime, const StepTrace& own) {
  std::vector<StepTrace> traces;
  for (const Numbers& numbers :
       gather_values(runtime.communicator(Group::kPp), to_numbers(own), "times of a step")) {
    traces.push_back(to_trace(numbers));
  }
  return traces;
}

/// The same busy time in one span: all that the bubble needs.
StepTrace without_details(const StepTrace& trace) {
  StepTrace short_trace = trace;
  Span all;
  all.end = trace.busy_wall();
  all.cpu = trace.busy_cpu();
  short_trace.spans = {all};
  short_trace.requests.clear();
  return short_trace;
}

double seconds_since_1970() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

StepTiming timing_of(const std::vector<StepTrace>& traces) {
  Nanoseconds start = traces.front().start;
  Nanoseconds end = traces.front().end;
  StepTiming timing;
  for (const StepTrace& trace : traces) {
    start = std::min(start, trace.start);
    end = std::max(end, trace.end);
    timing.oversubscribed |= trace.oversubscribed;
  }
  timing.seconds = static_cast<double>(end - start) / 1e9;
  timing.bubble = schedule::bubble(traces);
  return timing;
}

}  // namespace

struct RunLog::State {
  Runtime& runtime;
  const DistributedModelBase& model;
  std::string folder;
  std::optional<base::AppendFile> metrics, events;  // on the writer
  std::optional<StepTiming> timing;
  int lines = 0;
  bool plan_written = false;
  bool finished = false;

  bool writes() const { return runtime.topology().rank() == kWriter && !runtime.plan_request(); }
  std::string file(const char* name) const { return concat(folder, "/", name); }

  void start(const std::string& name, const RunLogOptions& options) {
    char buffer[32];
    const std::string utc = base::utc_timestamp(buffer);
    if (writes()) folder = make_folder(options.parent_folder, name, utc);
    folder = value_of_first(runtime.communicator(Group::kPp), folder);
    if (!writes()) return;
    base::write_file(file(report::kRunFile), description(name, utc, options));
    metrics.emplace(file(report::kMetricsFile));
    events.emplace(file(report::kEventFile));
    events->append(report::event_file_header(seconds_since_1970()));
    write_plan();
  }

  std::string description(const std::string& name, const std::string& utc,
                          const RunLogOptions& options) const {
    report::RunDescription made;
    made.name = name;
    made.started = utc;
    made.smp_version = SMP_VERSION;
    made.torch_version = SMP_TORCH_VERSION;
    made.world_size = runtime.topology().size();
    made.loss_unit = options.loss_unit;
    if (options.loss_baseline) {
      made.baseline = report::Baseline{*options.loss_baseline, options.loss_baseline_name};
    }
    made.configuration = runtime.resolved_config().to_json();
    return report::description_to_json(made);
  }

  /// As soon as there is one.
  void write_plan() {
    if (plan_written || !writes() || !model.partitioned()) return;
    report::write_plan(folder, model.plan(), simulation_of(model));
    plan_written = true;
  }

  std::vector<std::string> module_paths() const {
    std::vector<std::string> paths;
    const auto& modules = runtime.server().modules();
    for (int id = 0; id < static_cast<int>(modules.size()); ++id) {
      paths.emplace_back(modules.path(server::ModuleId{id}));
    }
    return paths;
  }
};

RunLog::RunLog(const std::string& name, const DistributedModelBase& model,
               const RunLogOptions& options)
    : state_(new State{Runtime::current(), model, {}, {}, {}, {}}) {
  state_->start(name, options);
  state_->runtime.server().recorder().enable(true);
}

RunLog::~RunLog() {
  if (state_->finished) return;
  state_->runtime.server().recorder().enable(false);
  if (!state_->writes()) return;
  try {
    report::draw_run(state_->folder);
  } catch (const std::exception& error) {
    base::log(base::LogLevel::kWarning, "pictures of the run: ", error.what());
  }
}

const std::string& RunLog::folder() const noexcept { return state_->folder; }

StepTiming RunLog::measure() {
  state_->timing =
      timing_of(gather_traces(state_->runtime, without_details(state_->runtime.last_trace())));
  return *state_->timing;
}

void RunLog::append(const std::vector<std::pair<std::string, double>>& numbers) {
  if (!state_->writes()) return;
  state_->write_plan();
  std::vector<std::pair<std::string, double>> line = {{"step", ++state_->lines}};
  line.insert(line.end(), numbers.begin(), numbers.end());
  if (state_->timing) {
    line.emplace_back("step_seconds", state_->timing->seconds);
    line.emplace_back("bubble", state_->timing->bubble);
  }
  state_->metrics->append_line(report::metrics_line(line));
  line.erase(line.begin());  // the step is no curve
  state_->events->append(report::event_record(seconds_since_1970(), state_->lines, line));
}

std::vector<std::string> RunLog::finish() {
  report::StepTimeline timeline{gather_traces(state_->runtime, state_->runtime.last_trace()),
                                state_->module_paths()};
  state_->runtime.server().recorder().enable(false);
  state_->finished = true;
  if (!state_->writes()) return {};
  state_->write_plan();
  base::write_file(state_->file(report::kTraceFile), report::trace_to_json(timeline));
  return report::draw_run(state_->folder);
}

}  // namespace smp
