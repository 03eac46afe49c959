// cli/sweep.cpp: a job for each row, in a folder of its own.
#include "cli/sweep.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <utility>

#include "api/files/runs_folder.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/files.h"
#include "base/text/progress.h"
#include "base/text/terminal.h"
#include "cli/mpi_job.h"
#include "config/config.h"
#include "config/config_keys.h"
#include "config/settings_grid.h"
#include "partition/text/short_text.h"
#include "report/folder/find_runs.h"
#include "report/folder/run_facts.h"
#include "report/folder/sweep_table.h"

namespace smp::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* kRanks = "ranks";
constexpr const char* kTable = "sweep.txt";
constexpr const char* kCsv = "sweep.csv";
constexpr const char* kJson = "sweep.json";

/// A setting that the program's own arguments give wins over that of the sweep, whose rows would
/// all be the same.
void require_not_given(const std::vector<std::string>& command,
                       const std::vector<base::SettingsAxis>& axes) {
  std::vector<std::string> words = command;
  std::vector<char*> arguments;
  for (auto& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  int count = static_cast<int>(words.size());
  for (const auto& [key, value] : base::take_flags(count, arguments.data())) {
    const auto* const known = base::find_config_key(key);
    const auto name = known == nullptr ? key : known->name;
    for (const auto& axis : axes) {
      SMP_REQUIRE(axis.key != name, "the arguments of ", command.front(), " set --smp.", key,
                  " to ", value, " in every run: leave it out, or do not vary it");
    }
  }
}

/// Makes a new folder for the sweep, also if another one of that program starts in the same second.
std::string new_folder(const ProgramToSweep& program) try {
  if (!program.folder.empty()) {
    const auto parent = fs::path(program.folder).parent_path().string();
    if (!parent.empty()) base::create_directories(parent);
    SMP_REQUIRE(base::create_new_directory(program.folder), program.folder,
                " exists already: name a new folder for the sweep");
    return program.folder;
  }
  char buffer[32];
  std::string time = base::utc_timestamp(buffer);  // 2026-11-21T14:05:09Z
  time.erase(std::remove_if(time.begin(), time.end(),
                            [](char c) { return c == '-' || c == ':' || c == 'Z'; }),
             time.end());
  std::replace(time.begin(), time.end(), 'T', '-');
  base::create_directories("sweeps");
  const auto wanted =
      base::concat("sweeps/", fs::path(program.command.front()).filename().string(), "-", time);
  auto folder = wanted;
  for (int number = 2; !base::create_new_directory(folder); ++number) {
    folder = base::concat(wanted, "-", number);
  }
  return folder;
} catch (const ResourceError& error) {
  throw ResourceError(base::concat(error.what(), "; --out names another folder"));
}

std::string failure_of(const EndedJob& ended, const std::string& log, double most_seconds) {
  if (ended.timed_out) return fmt::format("not done after {:g} s (--timeout)", most_seconds);
  if (ended.status == 0) return {};
  const auto reason = first_reason(base::read_file(log));
  return reason.empty() ? fmt::format("exit status {}", ended.status) : reason;
}

/// Reads what a run left into its row. A run that failed may have left half a folder.
void read_results(const std::string& parent, report::SweepRun& run) {
  run.folder = report::newest_run(parent);
  if (run.folder.empty()) {
    if (run.failure.empty()) {
      run.failure = "it ended well, but left no numbers: no smp::RunLog was made (smp/run_log.h)";
    }
    return;
  }
  try {
    run.result = report::result_of(report::read_facts(run.folder));
  } catch (const UsageError& error) {
    if (run.failure.empty()) run.failure = error.what();
  }
}

class SweepOfRuns {
 public:
  explicit SweepOfRuns(const ProgramToSweep& program)
      : program_(program), axes_(base::settings_axes(program.settings)) {
    require_not_given(program.command, axes_);
    require_startable(program.command.front());
    if (program.ranks.size() > 1) sweep_.keys.emplace_back(kRanks);
    for (const auto& axis : axes_) sweep_.keys.push_back(axis.key);
  }

  int run() {
    const auto settings = base::combinations(axes_);
    const auto count = program_.ranks.size() * settings.size();
    folder_ = new_folder(program_);
    write_tables();  // a file that cannot be written is not found out after an hour
    for (const int ranks : program_.ranks) {
      for (const auto& values : settings) {
        run_once(ranks, values, count);
        write_tables();  // an interrupted sweep keeps what it has
      }
    }
    const auto table = report::sweep_table(sweep_, base::terminal_width());
    std::fputs(table.c_str(), stdout);
    base::write_file(in_folder(kTable), table);
    std::printf("wrote %s, %s and %s beside the runs and their logs\n", in_folder(kTable).c_str(),
                kCsv, kJson);
    const auto& runs = sweep_.runs;
    const bool any =
        std::any_of(runs.begin(), runs.end(), [](const auto& run) { return run.failure.empty(); });
    return any ? 0 : 1;
  }

 private:
  std::string in_folder(const std::string& name) const { return base::concat(folder_, "/", name); }

  void run_once(int ranks, const std::vector<std::string>& values, std::size_t count) {
    const auto number = fmt::format("{:03}", sweep_.runs.size() + 1);
    const auto parent = in_folder(number);
    report::SweepRun run;
    if (program_.ranks.size() > 1) run.values.push_back(std::to_string(ranks));
    run.values.insert(run.values.end(), values.begin(), values.end());
    run.log = parent + ".log";
    MpiJob job{.ranks = ranks,
               .command = program_.command,
               .environment = {{kRunsFolderVariable, parent}},
               .log = run.log,
               .most_seconds = program_.most_seconds};
    for (std::size_t i = 0; i < axes_.size(); ++i) {
      job.environment.emplace_back(base::variable_of(axes_[i].key), values[i]);
    }
    const auto title = title_of(run, count);
    const auto ended = [&] {
      const base::Progress progress(title);
      return run_job(job);
    }();
    run.seconds = ended.seconds;
    run.failure = failure_of(ended, run.log, program_.most_seconds);
    read_results(parent, run);
    // The table comes last.
    std::fputs(base::concat(title, run.failure.empty() ? ", done" : ", failed", " in ",
                            partitioning::short_seconds(run.seconds), "\n")
                   .c_str(),
               stderr);
    sweep_.runs.push_back(std::move(run));
  }

  /// Returns "run 2 of 6: microbatches 4, pipeline simple".
  std::string title_of(const report::SweepRun& run, std::size_t count) const {
    auto text = base::concat("run ", sweep_.runs.size() + 1, " of ", count, ":");
    for (std::size_t i = 0; i < run.values.size(); ++i) {
      text += base::concat(i == 0 ? " " : ", ", sweep_.keys[i], " ", run.values[i]);
    }
    return text;
  }

  void write_tables() const {
    const auto csv = report::sweep_to_csv(sweep_), json = report::sweep_to_json(sweep_);
    base::write_file(in_folder(kCsv), csv);
    base::write_file(in_folder(kJson), json);
    if (!program_.csv.empty()) base::write_file(program_.csv, csv);
    if (!program_.json.empty()) base::write_file(program_.json, json);
  }

  const ProgramToSweep& program_;
  std::vector<base::SettingsAxis> axes_;
  std::string folder_;
  report::Sweep sweep_;
};

}  // namespace

int sweep(const ProgramToSweep& program) {
  SMP_REQUIRE(!program.command.empty(), "sweep needs a program: -- PROGRAM ARGUMENTS");
  SMP_REQUIRE(!program.ranks.empty(), "sweep needs --ranks N");
  SMP_REQUIRE(!program.settings.empty() || program.ranks.size() > 1,
              "sweep needs something to vary, such as --smp.microbatches 2,4,8");
  constexpr double kLongest = 1e9;  // whose nanoseconds fit a clock
  SMP_REQUIRE(program.most_seconds > 0 && program.most_seconds <= kLongest, "--timeout is ",
              program.most_seconds, ", must be above 0 and at most ", kLongest, " seconds");
  return SweepOfRuns(program).run();
}

}  // namespace smp::cli
