// Damaged settings, plans, run folders and schedules: whatever reads them ends with a documented
// error that names the file, or reads them. SMP_DAMAGED_FILES=100000 tries as many; the file of a
// crash stays in the folder that is printed.
#include <gmock/gmock.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <iostream>
#include <random>
#include <tuple>

#include "base/check.h"
#include "base/files.h"
#include "config/config.h"
#include "partition/plan/plan_check.h"
#include "partition/plan/plan_example.h"
#include "partition/simulated/planned_step.h"
#include "report/analysis/trace_file.h"
#include "report/export/chrome_trace.h"
#include "report/export/metrics_table.h"
#include "report/folder/plan_schedules.h"
#include "report/folder/run_folder.h"
#include "report/pictures/memory_use.h"
#include "report/pictures/timeline.h"
#include "report/pictures/timeline_page.h"
#include "report/pictures/traffic.h"
#include "schedule/list_check.h"
#include "schedule/list_generators.h"
#include "schedule/trace_ring.h"
#include "support/damaged_files.h"

namespace smp::report {
namespace {

using base::concat;

constexpr int kWhole = 37;

StepTimeline small_step() {
  StepTimeline step;
  step.module_paths = {"", "encoder", "decoder"};
  for (int rank = 0; rank < 3; ++rank) {
    schedule::StepTrace trace;
    trace.pp_rank = rank;
    trace.step = 7;
    trace.end = 60'000;
    for (int i = 0; i < 5; ++i) {
      trace.spans.push_back({i * 10'000, i * 10'000 + 9'000, 8'000, i, rank,
                             i % 2 == 0 ? schedule::Phase::kForward : schedule::Phase::kBackward});
    }
    trace.between = {{-9'000, -4'000, 5'000, -1, -1, schedule::Phase::kHost},
                     {-4'000, 0, 2'000, -1, -1, schedule::Phase::kOptimizer}};
    trace.requests = {{1'000, 0, rank, schedule::RequestEvent::Kind::kAsked},
                      {2'000, 0, rank, schedule::RequestEvent::Kind::kBegun},
                      {3'000, 0, rank, schedule::RequestEvent::Kind::kAnswered},
                      {4'000, 0, rank, schedule::RequestEvent::Kind::kReceived}};
    step.ranks.push_back(trace);
  }
  return step;
}

std::string ring_bytes() {
  std::vector<std::byte> memory(schedule::TraceRing::bytes_for(64));
  schedule::TraceRing ring(memory, 0, false);
  for (int step = 1; step <= 3; ++step) {
    ring.begin_step(step, step * 1'000'000);
    ring.begin({step * 1'000'000 + 10, 0, 0, 1, 1, schedule::Phase::kForward});
    ring.end(step * 1'000'000 + 500, 400);
    ring.add({step * 1'000'000 + 600, 0, step, schedule::RequestEvent::Kind::kAsked});
    if (step < 3) ring.end_step(step, step * 1'000'000 + 900);
    if (step < 3) ring.begin({step * 1'000'000 + 950, 0, 0, -1, -1, schedule::Phase::kHost});
    ring.end((step + 1) * 1'000'000, 70);
  }
  return {reinterpret_cast<const char*>(memory.data()), memory.size()};
}

std::string run_json() {
  RunDescription run;
  run.name = "demo";
  run.started = "2026-11-21T14:05:09Z";
  run.world_size = 3;
  run.loss_unit = "nats";
  run.baseline = Baseline{4.5, "entropy"};
  run.computing = {{"ranks 0-1", 2, "AMD EPYC (AVX512)"}, {"rank 2", 1, "aarch64 (NEON)"}};
  run.configuration = base::resolve_config({}).to_json();
  return description_to_json(run);
}

std::string metrics_text() {
  std::string text;
  for (int step = 1; step <= 30; ++step) {
    text += metrics_line({{"step", step}, {"loss", 5.0 / step}, {"rows", 4}}) + "\n";
  }
  return text;
}

/// A folder in which every file is right, and what reads each of them.
class Folder {
 public:
  using Read = std::function<void(const std::string& path)>;
  struct File {
    std::string name, text;
    Read read;
  };

  Folder() {
    base::create_directories(path_);
    const auto example = partitioning::t5_example();
    const auto plan = example.plan();
    partitioning::PlannedStep step;
    step.trace = example.trace;
    step.machine = example.machine;
    step.pipeline = "simple";
    step.microbatches = 4;
    step.active_microbatches = 2;
    const auto simulated = trace_to_json(small_step(), step.to_json());
    const Read schedules = [this](const auto&) {
      std::ignore = schedules_table(in(kPlanFile), "simple,1f1b", 0);
    };
    add("settings.json", R"({"microbatches": 8, "stage_speeds": [1, 2.5], "pipeline": "1f1b",
      // a comment
      "plan_cache": "plans", "stall_seconds": 30, "fast_mode": false, "seed": 3})",
        [](const auto& path) {
          base::ConfigInput input;
          input.flags = {{"config", path}};
          base::resolve_config(input).table();
        });
    add("pins.json", R"({"encoder": 0, "decoder.block.1": 1})",
        [](const auto& path) { partitioning::plan_file_of(base::read_file(path), path); });
    add("own.txt", schedule::one_forward_one_backward_lists(3, 6).to_text(),
        [](const auto& path) { schedule::check_lists(schedule::ScheduleLists::read(path), path); });
    add(kPlanFile, plan.to_json(), [](const auto& path) {
      partitioning::plan_file_of(base::read_file(path), path).plan.value_or(PartitionPlan());
    });
    add(kPlanFile, plan.to_json(), schedules);
    add(kSimulationFile, simulated, schedules);
    add(kTraceFile, trace_to_json(small_step()), [](const auto& path) {
      const auto step = trace_from_json(base::read_file(path), path);
      draw_timeline(step);
      draw_timeline_page(step);
      to_chrome_trace(step);
    });
    add(kTrafficFile,
        traffic_to_json({3, {{0, 4}, {5, 0}}, {{0, 9}, {8, 0}}, {{"", "mpi"}, {"mpi", ""}}}),
        [](const auto& path) { draw_traffic(traffic_from_json(base::read_file(path), path)); });
    add(kMemoryFile, memory_use_to_json({1'000'000, 2'000'000, 3'000'000}),
        [](const auto& path) { std::ignore = memory_use_from_json(base::read_file(path), path); });
    add(kMetricsFile, metrics_text(), [](const auto& path) {
      const auto metrics = base::read_file(path);
      metrics_to_csv(metrics);
      draw_loss({losses_of(metrics, path), "loss", "", {}});
    });
    add(kRunFile, run_json(),
        [](const auto& path) { description_from_json(base::read_file(path), path); });
    add(ring_file(0), ring_bytes(),
        [](const auto& path) { std::ignore = schedule::read_ring(base::read_file(path), path); });
    base::write_file(in(kModulesFile), modules_to_json({"", "encoder"}));
    for (const File& file : files_) restore(file);
  }
  ~Folder() { std::filesystem::remove_all(path_); }

  const std::string& path() const { return path_; }
  const std::vector<File>& files() const { return files_; }
  std::string in(const std::string& name) const { return path_ + "/" + name; }
  void restore(const File& file) {
    if (file.name == ring_file(0)) {
      base::remove_file(in(file.name));
    } else {
      base::write_file(in(file.name), file.text);
    }
    base::write_file(in(kTraceFile), trace_to_json(small_step()));  // rings replace it
  }

 private:
  void add(const std::string& name, const std::string& text, Read read) {
    files_.push_back({name, text, std::move(read)});
  }

  const std::string path_ = concat(testing::TempDir(), "smp_damage_", ::getpid());
  std::vector<File> files_;
};

/// Bytes that change, go, come twice or are replaced by what readers stumble over.
class Damage {
 public:
  explicit Damage(int seed) : random_(static_cast<std::uint64_t>(seed)) {}

  std::string to(std::string text) {
    for (std::size_t left = 1 + below(3); left > 0; --left) once(text);
    return text;
  }

 private:
  std::size_t below(std::size_t end) { return end == 0 ? 0 : random_() % end; }

  void once(std::string& text) {
    const std::size_t at = below(text.size()), length = 1 + below(below(2) == 0 ? 8 : 400);
    switch (below(7)) {
      case 0:
        if (!text.empty()) text[at] = static_cast<char>(random_());
        break;
      case 1:
        text.resize(at);
        break;
      case 2:
        text.insert(at, text.substr(at, length));
        break;
      case 3:
        text.erase(at, length);
        break;
      case 4:
        text.insert(below(text.size()), text.substr(at, length));
        break;
      case 5:
        replace_number(text, at);
        break;
      default:
        text.insert(at, odd());
    }
  }

  void replace_number(std::string& text, std::size_t at) {
    const auto begin = text.find_first_of("0123456789", at);
    if (begin == std::string::npos) return;
    const auto end = text.find_first_not_of("0123456789.", begin);
    text.replace(begin, end == std::string::npos ? end : end - begin, odd());
  }

  std::string odd() {
    static const std::vector<std::string> kOdd = {"-1",
                                                  "0",
                                                  "1.9",
                                                  "4294967297",
                                                  "1e999",
                                                  "1e308",
                                                  "-1e308",
                                                  "1e-300",
                                                  "9223372036854775807",
                                                  "18446744073709551616",
                                                  "null",
                                                  "true",
                                                  "{}",
                                                  "[]",
                                                  "\"\"",
                                                  "\"\\u0000\\u001b\"",
                                                  "\xff",
                                                  "\n",
                                                  ",",
                                                  "2147483647",
                                                  "1000000",
                                                  "nan",
                                                  "\"inf\""};
    const auto which = below(kOdd.size() + 1);
    return which < kOdd.size() ? kOdd[which] : std::string(2000, '[');
  }

  std::mt19937_64 random_;
};

/// What is wrong with the end of `read`; empty if it read the file, or refused it as documented.
std::string fault_of(const std::function<void()>& read, const std::string& folder) {
  try {
    read();
    return {};
  } catch (const InternalError& error) {
    return concat("an internal error: ", error.what());
  } catch (const Error& error) {
    const std::string text = error.what();
    if (text.find(folder) == std::string::npos) return "names no file: " + text;
    return text.size() > 4000 ? concat("quotes ", text.size(), " bytes") : "";
  } catch (const std::exception& error) {
    return concat("no error of ours: ", error.what());
  }
}

TEST(Damage, IsReadOrRefusedByName) {
  Folder folder;
  for (const auto& file : folder.files()) {
    base::write_file(folder.in(file.name), file.text);
    EXPECT_EQ(fault_of([&] { file.read(folder.in(file.name)); }, folder.path()), "") << file.name;
    folder.restore(file);
  }
  std::cout << "files that end this process are in " << folder.path() << "\n";
  int refused = 0;
  const int count = damaged_files(10'000);
  for (int seed = 0; seed < count; ++seed) {
    const auto& file = folder.files()[static_cast<std::size_t>(seed) % folder.files().size()];
    const auto path = folder.in(file.name);
    base::write_file(path, Damage(seed).to(file.text));
    const auto begin = std::chrono::steady_clock::now();
    bool accepted = false;
    const bool whole = seed % kWhole == 0;  // all pictures of the folder, which takes longer
    const auto fault = fault_of(
        [&] {
          if (whole) draw_run(folder.path());
          if (whole) summarise_run(folder.path());
          file.read(path);
          accepted = true;
        },
        folder.path());
    refused += accepted ? 0 : 1;
    EXPECT_EQ(fault, "") << file.name << ", seed " << seed;
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20))
        << file.name << ", seed " << seed;
    folder.restore(file);
  }
  EXPECT_GT(refused, count / 3) << "else the damage is none";
}

}  // namespace
}  // namespace smp::report
