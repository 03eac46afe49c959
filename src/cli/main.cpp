// cli/main.cpp: the tool smp (target smp-cli), questions about runs, plans and settings that need
// no training program.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/cluster/node_type.h"
#include "base/files.h"
#include "base/machine/device.h"
#include "base/text/edit_distance.h"
#include "base/text/terminal.h"
#include "cli/doctor.h"
#include "cli/job_paths.h"
#include "cli/nemo_config.h"
#include "cli/plan_program.h"
#include "cli/sweep.h"
#include "config/config.h"
#include "config/config_keys.h"
#include "config/precision_types.h"
#include "report/folder/find_runs.h"
#include "report/folder/plan_schedules.h"
#include "report/folder/run_comparison.h"
#include "report/folder/run_folder.h"
#include "schedule/list_check.h"
#include "schedule/named_lists.h"
#include "smp/error.h"
#include "smp/plan.h"
#include "smp/version.h"

namespace {

constexpr int kUsageExit = 2;    // change the call, the settings or a file
constexpr int kFailureExit = 1;  // anything else

void print(const std::string& text) { std::fputs(text.c_str(), stdout); }

void report(const std::string& folder) {
  const auto pictures = smp::report::draw_run(folder);
  if (pictures.empty()) print(folder + ": no step was logged yet, nothing to draw\n");
  print(smp::report::summarise_run(folder, smp::base::terminal_width()) + "\n");
  for (const std::string& picture : pictures) print("wrote " + picture + "\n");
}

void compare(const std::string& first, const std::string& second, const std::string& file) {
  const auto [tables, page] =
      smp::report::compare_runs(first, second, file, smp::base::terminal_width());
  print(tables + "wrote " + page + "\n");
}

void export_trace(const std::string& folder, const std::string& file) {
  print("wrote " + smp::report::export_trace(folder, file) +
        ": open it at https://ui.perfetto.dev or in chrome://tracing\n");
}

void print_plan(const std::string& path) {
  const smp::PartitionPlan plan = smp::PartitionPlan::read(path);
  char model[32];
  std::snprintf(model, sizeof model, "%016llx", static_cast<unsigned long long>(plan.model_hash()));
  print(path + ": " + std::to_string(plan.rows().size()) + " modules on " +
        std::to_string(plan.pp_size()) + " stages, model " + model + "\n" +
        plan.table(smp::base::terminal_width()));
}

void print_config(const std::string& file, int ranks, bool brief) {
  smp::base::ConfigInput input;
  input.environment = smp::base::environment_settings();
  if (!file.empty()) input.flags = {{"config", file}};
  input.world_size = ranks;
  const smp::base::ResolvedConfig config = smp::base::resolve_config(input);
  for (const std::string& warning : config.warnings()) print("warning: " + warning + "\n");
  print(brief ? config.table() : config.explained(smp::base::terminal_width()));
  const auto numbers = smp::base::precision_table(config.values());
  if (!numbers.empty()) print("\n" + numbers);
}

// Runs `action`; on an error prints one line and returns what the process shall exit with.
int guarded(const std::function<void()>& action) {
  try {
    action();
    return 0;
  } catch (const smp::UsageError& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return kUsageExit;
  } catch (const smp::UnsupportedError& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return kUsageExit;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return kFailureExit;
  }
}

struct ScheduleToPrint {
  std::string name;
  int ranks = 0;
  int microbatches = 0;
  int most_kept = 0;  // 0: any number
  std::string file;
};

// What the verbs are given, and how the process shall exit. Lives as long as the parser.
struct Call {
  std::string folder;      // report, trace
  std::string other;       // report: the second of two runs
  std::string page;        // report
  std::string trace_file;  // trace
  std::string plan;        // plan
  smp::cli::ProgramToPlan to_plan;
  smp::cli::ProgramToSweep to_sweep;
  ScheduleToPrint schedule;
  std::string config_file;  // config
  std::string from;         // config
  std::string translated;   // config
  int ranks = 0;
  bool brief = false;
  bool paths = false;  // doctor
  int exit_code = 0;
};

void add_report(CLI::App& app, Call& call) {
  auto* verb = app.add_subcommand(
      "report",
      "Draw the pictures and pages of a run, or of a plan, again; of two runs, compare them");
  verb->add_option("RUN", call.folder, "Folder of the run, such as runs/demo-20261121-140509")
      ->required();
  auto* other = verb->add_option("OTHER", call.other, "Folder of a run to compare it with");
  verb->add_option("--out", call.page,
                   "File for the page of both (default: compared-with-RUN.html in OTHER)")
      ->needs(other);
  verb->callback([&call] {
    call.exit_code = guarded([&] {
      if (call.other.empty()) {
        report(call.folder);
      } else {
        compare(call.folder, call.other, call.page);
      }
    });
  });
}

void add_trace(CLI::App& app, Call& call) {
  auto* verb = app.add_subcommand(
      "trace", "Write the last recorded step of a run as Chrome and Perfetto read it");
  verb->add_option("RUN", call.folder, "Folder of the run, or of a plan")->required();
  verb->add_option("--out", call.trace_file,
                   "File to write (default: trace-chrome.json of the run)");
  verb->callback(
      [&call] { call.exit_code = guarded([&] { export_trace(call.folder, call.trace_file); }); });
}

// A run's folder stands for the plan in it.
std::string plan_file(const std::string& path) {
  const bool is_folder = std::filesystem::is_directory(path);
  const auto file =
      is_folder ? (std::filesystem::path(path) / smp::report::kPlanFile).string() : path;
  if (!smp::base::file_exists(file)) {
    smp::report::refuse_run(path, std::string("holds no ") + smp::report::kPlanFile);
  }
  return file;
}

// Prints a plan, compares schedules for it, or makes one; what the program that made it ended with.
int plan(const Call& call) {
  if (smp::cli::wants_planning(call.to_plan, call.plan)) {
    return smp::cli::plan_program(call.to_plan);
  }
  if (call.to_plan.schedules.empty()) {
    print_plan(plan_file(call.plan));
  } else {
    print(smp::report::schedules_table(plan_file(call.plan), call.to_plan.schedules,
                                       call.to_plan.microbatches));
  }
  return 0;
}

std::string listed(const std::vector<std::string>& names) {
  std::string list;
  for (const auto& name : names) list += (list.empty() ? "" : ", ") + name;
  return list;
}

std::string device_list() { return listed(smp::base::device_names()); }

std::string cluster_list() { return listed(smp::base::node_type_names()); }

void add_plan(CLI::App& app, Call& call) {
  auto* verb = app.add_subcommand(
      "plan",
      "Print a plan as a table, or make one: plan --ranks N [--out FOLDER] -- PROGRAM ARGUMENTS");
  verb->add_option("FILE", call.plan, "A run's folder, or its plan.json");
  verb->add_option("--ranks", call.to_plan.ranks, "Run PROGRAM up to its plan for N ranks")
      ->check(CLI::Range(1, smp::base::kMostStages));
  verb->add_option(
      "--cluster", call.to_plan.cluster,
      "Instead of --ranks: a rank on every core of NAME:NODES, whose devices and links "
      "are known; NAME is one of " +
          cluster_list());
  verb->add_option("--out", call.to_plan.folder, "Folder for the plan and its pictures");
  verb->add_option(
      "--schedule", call.to_plan.schedules,
      "Compare these schedules for the plan: all, or names with commas between them; file:PATH is "
      "one of your own (docs/schedules.md)");
  verb->add_option("--microbatches", call.to_plan.microbatches,
                   "Of a step, for --schedule (default: as planned)")
      ->check(CLI::Range(1, smp::base::kMostMicrobatches));
  verb->add_option("--devices", call.to_plan.devices,
                   "What the stages compute on: one name for all, or one per stage with commas "
                   "between them: " +
                       device_list());
  verb->add_option("--stages-per-node", call.to_plan.stages_per_node,
                   "Stages of one node (default: all of them)")
      ->check(CLI::Range(1, smp::base::kMostStages));
  verb->callback([&call] {
    int program = 0;
    call.exit_code = guarded([&] { program = plan(call); });
    if (call.exit_code == 0) call.exit_code = program;
  });
}

void add_sweep(CLI::App& app, Call& call) {
  auto& wanted = call.to_sweep;
  auto* verb = app.add_subcommand(
      "sweep",
      "Run a program with every combination of some settings, and print a row for each: sweep "
      "--ranks N --smp.KEY A,B [--smp.KEY ...] -- PROGRAM ARGUMENTS");
  verb->add_option("--ranks", wanted.ranks, "Of each run; with commas between them: one more axis")
      ->required()
      ->delimiter(',')
      ->check(CLI::Range(1, smp::base::kMostStages));
  verb->add_option("--timeout", wanted.most_seconds, "After which a run is ended, in seconds")
      ->capture_default_str();
  verb->add_option("--out", wanted.folder,
                   "New folder for runs, logs and tables (default: sweeps/PROGRAM-time)");
  verb->add_option("--csv", wanted.csv, "File for the table, beside that in the folder");
  verb->add_option("--json", wanted.json, "The same as JSON");
  verb->callback([&call] {
    int ended = 0;
    call.exit_code = guarded([&] { ended = smp::cli::sweep(call.to_sweep); });
    if (call.exit_code == 0) call.exit_code = ended;
  });
}

void print_schedule(const ScheduleToPrint& wanted) {
  const auto lists = smp::schedule::lists_named(
      wanted.name, {.pp_size = wanted.ranks, .microbatches = wanted.microbatches});
  smp::schedule::check_lists(lists, wanted.name, wanted.most_kept);
  if (wanted.file.empty()) return print(lists.to_text());
  lists.write(wanted.file);
  print("wrote " + wanted.file + ": change it and train with pipeline = file:" + wanted.file +
        "\n");
}

void add_schedule(CLI::App& app, Call& call) {
  auto& wanted = call.schedule;
  auto* verb = app.add_subcommand(
      "schedule", "Print a pipeline schedule as lists, which you may change, or check your own");
  verb->add_option("NAME", wanted.name,
                   "simple, 1f1b, zero_bubble, 1f1b+N, zero_bubble+N, file:PATH")
      ->required();
  verb->add_option("--ranks", wanted.ranks, "Of the pipeline")
      ->required()
      ->check(CLI::Range(1, smp::base::kMostStages));
  verb->add_option("--microbatches", wanted.microbatches, "Of a step")
      ->required()
      ->check(CLI::Range(1, smp::base::kMostMicrobatches));
  verb->add_option("--keep", wanted.most_kept,
                   "Refuse lists under which a rank keeps the activations of more microbatches")
      ->check(CLI::PositiveNumber);
  verb->add_option("--out", wanted.file, "File to write (default: print)");
  verb->callback([&call] { call.exit_code = guarded([&] { print_schedule(call.schedule); }); });
}

void add_config(CLI::App& app, Call& call) {
  auto* verb = app.add_subcommand(
      "config",
      "Print the settings that a file and the environment give, where each comes from and what it "
      "means");
  verb->add_option("FILE", call.config_file, "JSON file of settings");
  verb->add_option("--ranks", call.ranks, "Check the degrees against this number of ranks")
      ->check(CLI::Range(1, smp::base::kMostStages));
  verb->add_flag("--brief", call.brief, "Without what each setting means");
  auto* from =
      verb->add_option("--from", call.from,
                       "FILE is a configuration of NeMo or Megatron-LM (YAML): print settings, "
                       "config.json and command here, and what is lost")
          ->check(CLI::IsMember({"nemo"}));
  verb->add_option("--out", call.translated, "With --from: folder for smp.json and config.json")
      ->needs(from);
  verb->callback([&call] {
    call.exit_code = guarded([&] {
      if (call.from.empty()) {
        print_config(call.config_file, call.ranks, call.brief);
      } else {
        print(smp::cli::translate_nemo(call.config_file, call.translated));
      }
    });
  });
}

void add_doctor(CLI::App& app, Call& call) {
  auto* verb = app.add_subcommand(
      "doctor",
      "Look whether this machine is fit for a job: cores, memory, BLAS, MPI, networks, limits");
  verb->add_option("--ranks", call.ranks, "That are to run on this machine (default: one a core)")
      ->check(CLI::Range(1, smp::base::kMostStages));
  verb->add_flag("--paths", call.paths, "Under mpirun: over which paths ranks reach each other");
  verb->callback([&call] {
    int found = 0;
    call.exit_code = guarded([&] {
      if (call.paths) {
        smp::cli::show_paths();
      } else {
        found = smp::cli::examine_machine(call.ranks);
      }
    });
    if (call.exit_code == 0) call.exit_code = found;
  });
}

/// Refuses an unknown command by name; CLI11 would only say that some command is missing.
void require_known_command(const CLI::App& app, int argc, char** argv) {
  if (argc < 2 || *argv[1] == '-') return;
  std::vector<std::string> names;
  std::string list;
  for (const auto* verb : app.get_subcommands({})) {
    names.push_back(verb->get_name());
    list += (list.empty() ? "" : ", ") + names.back();
  }
  if (std::find(names.begin(), names.end(), argv[1]) != names.end()) return;
  throw smp::UsageError(std::string("there is no command \"") + argv[1] + "\"" +
                        smp::base::did_you_mean(argv[1], names) + "; the commands are " + list);
}

}  // namespace

int main(int argc, char** argv) {
  // Who started this may ignore it, and then no child can be asked how it ended.
  std::signal(SIGCHLD, SIG_DFL);
  CLI::App app{"Questions about smp runs, plans and settings."};
  app.name("smp");
  app.footer(
      "The script ./smp of the source folder is another program: it builds this tool and passes\n"
      "report, trace, plan, sweep, schedule, config and doctor on to it; demo, test, build,\n"
      "install and perf are its own.");
  app.set_version_flag("--version", "smp " SMP_VERSION " (LibTorch " SMP_TORCH_VERSION ")");
  app.require_subcommand(1);
  Call call;
  call.to_plan.command = call.to_sweep.command = smp::cli::take_program(argc, argv);
  if (argc > 1 && std::string_view(argv[1]) == "sweep") {
    call.to_sweep.settings = smp::base::take_flags(argc, argv);
  }
  add_report(app, call);
  add_trace(app, call);
  add_plan(app, call);
  add_sweep(app, call);
  add_schedule(app, call);
  add_config(app, call);
  add_doctor(app, call);
  const int refused = guarded([&] { require_known_command(app, argc, argv); });
  if (refused != 0) return refused;
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {  // or --help
    return app.exit(error) == 0 ? 0 : kUsageExit;
  }
  return call.exit_code;
}
