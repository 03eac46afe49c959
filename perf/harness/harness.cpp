// perf/harness/harness.cpp
#include "harness.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/core.h>
#include <mpi.h>
#include <stdlib.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <thread>

#include "base/check.h"
#include "base/clock.h"
#include "base/files.h"
#include "config/json.h"
#include "smp/version.h"

#ifndef SMP_SOURCE_DIR
#define SMP_SOURCE_DIR "."
#endif

namespace smp::perf {
namespace {

constexpr double kLeastGflops = 50;

std::string processor_model() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("model name")) return line.substr(line.find(": ") + 2);
  }
  return "unknown";
}

base::Json machine(double gflops) {
  double load[3] = {0, 0, 0};
  getloadavg(load, 3);
  return {{"processor", processor_model()},
          {"cores", std::thread::hardware_concurrency()},
          {"threads_of_libtorch", at::get_num_threads()},
          {"matrix_multiplication_gflops", std::round(gflops)},
          {"load_average", {load[0], load[1], load[2]}}};
}

std::string now() {
  char buffer[32];
  return base::utc_timestamp(buffer);
}

/// Another folder for results, which a program that runs this one reads there.
const char* elsewhere() { return getenv("SMP_PERF_RESULTS"); }

std::string results_folder() { return elsewhere() ? elsewhere() : SMP_SOURCE_DIR "/perf/results"; }

std::string mpi_version() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING];
  int length = 0;
  MPI_Get_library_version(text, &length);
  const std::string version(text, static_cast<std::size_t>(length));
  return version.substr(0, version.find(','));  // what follows tells who built it
}

}  // namespace

double median(std::vector<double> values) { return percentile(std::move(values), 0.5); }

double percentile(std::vector<double> values, double fraction) {
  SMP_REQUIRE(!values.empty(), "percentile of no values");
  std::sort(values.begin(), values.end());
  const double position = fraction * static_cast<double>(values.size() - 1);
  const auto below = static_cast<std::size_t>(position);
  const auto above = std::min(below + 1, values.size() - 1);
  const double weight = position - static_cast<double>(below);
  return values[below] * (1 - weight) + values[above] * weight;
}

bool brief() {
  const char* asked = getenv("SMP_PERF_BRIEF");
  return asked != nullptr && std::string(asked) == "1";
}

int rounds(int usual) { return brief() ? 1 : usual; }

double microseconds(const std::function<void()>& body) { return microseconds_each(1, body); }

double microseconds_each(int repetitions, const std::function<void()>& body) {
  const base::SteadyClock clock;
  const auto start = clock.now();
  for (int i = 0; i < repetitions; ++i) body();
  return static_cast<double>(clock.now() - start) / base::kMicrosecond / repetitions;
}

double Alternated::ratio() const {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < a.size(); ++i) ratios.push_back(a[i] / b[i]);
  return median(std::move(ratios));
}

Alternated alternate(int times, const std::function<double()>& a,
                     const std::function<double()>& b) {
  a();
  b();
  Alternated samples;
  for (int i = 0; i < rounds(times); ++i) {
    samples.a.push_back(a());
    samples.b.push_back(b());
  }
  return samples;
}

double matrix_multiplication_gflops() {
  constexpr int kSize = 1024, kTries = 10;
  const auto a = at::ones({kSize, kSize}), b = at::ones({kSize, kSize});
  constexpr double kOperations = 2.0 * kSize * kSize * kSize;
  double best = 0;
  for (int i = 0; i < kTries; ++i) {
    const auto start = base::thread_cpu_time();
    a.mm(b);
    best = std::max(best, kOperations / static_cast<double>(base::thread_cpu_time() - start));
  }
  return best;
}

Report::Report(std::string name, Earlier earlier)
    : name_(std::move(name)),
      earlier_(earlier),
      gflops_(brief() ? 0 : matrix_multiplication_gflops()) {
  SMP_REQUIRE_AS(UnsupportedError, brief() || gflops_ >= kLeastGflops, "perf_", name_,
                 ": this LibTorch multiplies 1024 x 1024 matrices with ", gflops_,
                 " GFLOP/s; below ", kLeastGflops,
                 " numbers mean nothing. Use a LibTorch with MKL or OpenBLAS.");
  versions_["LibTorch"] = SMP_TORCH_VERSION;
  versions_["compiler"] = __VERSION__;
  versions_["smp"] = SMP_VERSION;
}

void Report::add(std::string metric, double value, std::string unit, std::string note) {
  rows_.push_back({std::move(metric), value, std::move(unit), std::move(note)});
}

void Report::add_samples(const std::string& name, const std::vector<double>& samples,
                         const std::string& unit, const std::string& note) {
  add(name + ".median", median(samples), unit, note);
  add(name + ".p10", percentile(samples, 0.1), unit);
  add(name + ".p90", percentile(samples, 0.9), unit);
}

void Report::add_version(const std::string& component, const std::string& version) {
  versions_[component] = version;
}

std::string Report::table() const {
  std::size_t width = 0, unit_width = 0;
  for (const auto& row : rows_) {
    width = std::max(width, row.metric.size());
    unit_width = std::max(unit_width, row.unit.size());
  }
  std::string text;
  for (const auto& row : rows_) {
    text += fmt::format("{:<{}}  {:>12.4g} {:<{}}  {}\n", row.metric, width, row.value, row.unit,
                        unit_width, row.note);
  }
  return text;
}

bool Report::measured(const std::string& metric) const {
  return std::any_of(rows_.begin(), rows_.end(),
                     [&](const Row& row) { return row.metric == metric; });
}

std::string Report::path() const { return results_folder() + "/" + name_ + ".json"; }

std::vector<Row> Report::kept_rows() const {
  std::vector<Row> rows;
  if (brief() || earlier_ != Earlier::kKept || !base::file_exists(path())) return rows;
  const auto earlier = base::parse_json(base::read_file(path()), path());
  for (const auto& row : earlier.at("rows")) {
    if (measured(row.at("metric"))) continue;
    rows.push_back({row.at("metric"), row.at("value"), row.at("unit"), row.value("note", "")});
  }
  return rows;
}

std::vector<double> Report::values(const std::string& prefix) const {
  std::vector<double> values;
  for (const auto& rows : {kept_rows(), rows_}) {
    for (const auto& row : rows) {
      if (row.metric.starts_with(prefix)) values.push_back(row.value);
    }
  }
  return values;
}

std::string Report::json() const {
  auto rows = base::Json::array();
  for (const auto& some : {kept_rows(), rows_}) {
    for (const auto& row : some) {
      rows.push_back({{"metric", row.metric}, {"value", row.value}, {"unit", row.unit}});
      if (!row.note.empty()) rows.back()["note"] = row.note;
    }
  }
  const base::Json result = {{"name", name_},
                             {"date", now()},
                             {"machine", machine(gflops_)},
                             {"versions", versions_},
                             {"rows", rows}};
  return result.dump(2) + "\n";
}

void Report::save() const {
  if (brief()) return;
  base::create_directories(results_folder());
  base::write_file(path(), json());
}

void Report::finish() const {
  std::fputs(table().c_str(), stdout);
  if (brief()) {
    std::puts("a brief run, not written: its numbers mean nothing");
    return;
  }
  save();
  std::printf("written to %s/%s.json\n", elsewhere() ? elsewhere() : "perf/results", name_.c_str());
}

std::optional<Report> report_of_ranks(int rank, const std::string& name, Report::Earlier earlier) {
  if (rank != 0) return std::nullopt;
  Report report(name, earlier);
  report.add_version("MPI", mpi_version());
  return report;
}

bool parse_options(CLI::App& app, int argc, char** argv) {
  app.allow_extras();
  try {
    app.parse(argc, argv);
    return true;
  } catch (const CLI::CallForHelp&) {
    std::puts(app.help().c_str());
    return false;
  }
}

int run_program(const std::function<void()>& program) {
  try {
    program();
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}

}  // namespace smp::perf
