// report/folder/run_facts.cpp: reads the files, and gathers the numbers by name.
#include "report/folder/run_facts.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <sstream>

#include "base/check.h"
#include "base/files.h"
#include "report/folder/metrics_line.h"
#include "report/folder/run_folder.h"

namespace smp::report {
namespace {

constexpr const char* kPerSecond = "_per_second";

std::vector<double>& column(RunFacts& facts, const std::string& name) {
  for (auto& [key, values] : facts.numbers) {
    if (key == name) return values;
  }
  return facts.numbers.emplace_back(name, std::vector<double>()).second;
}

const std::vector<double>* find_column(const RunFacts& facts, const std::string& name) {
  for (const auto& [key, values] : facts.numbers) {
    if (key == name) return &values;
  }
  return nullptr;
}

}  // namespace

RunFacts read_facts(const std::string& folder) {
  const auto path_of = [&](const std::string& file) {
    const auto path = base::concat(folder, "/", file);
    return base::file_exists(path) ? path : std::string();
  };
  const auto description = describe_run(folder);
  RunFacts facts;
  facts.name = description.name;
  facts.started = description.started;
  facts.world_size = description.world_size;
  facts.computing = computing_text(description.computing);
  if (const auto path = path_of(kMetricsFile); !path.empty()) {
    add_metrics(facts, base::read_file(path));
  }
  if (const auto path = path_of(kPlanFile); !path.empty()) facts.plan = PartitionPlan::read(path);
  if (const auto path = path_of(kMemoryFile); !path.empty()) {
    facts.memory = memory_use_from_json(base::read_file(path), path);
  }
  facts.ended_well = path_of(ring_file(0)).empty();
  return facts;
}

void add_metrics(RunFacts& facts, const std::string& metrics) {
  std::istringstream lines(metrics);
  for (std::string line; std::getline(lines, line);) {
    const auto numbers = numbers_of(line);
    if (!numbers || numbers->empty()) continue;
    ++facts.steps;
    for (const auto& [name, value] : *numbers) column(facts, name).push_back(value);
  }
}

std::optional<double> median_of(const RunFacts& facts, const std::string& name) {
  const auto* const all = find_column(facts, name);
  if (all == nullptr || all->empty()) return std::nullopt;
  std::vector<double> values;
  std::copy_if(all->size() > 1 ? all->begin() + 1 : all->begin(), all->end(),
               std::back_inserter(values), [](double value) { return std::isfinite(value); });
  if (values.empty()) return std::nullopt;
  std::sort(values.begin(), values.end());
  const auto half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

std::optional<double> first_of(const RunFacts& facts, const std::string& name) {
  const auto* const all = find_column(facts, name);
  if (all == nullptr || all->empty()) return std::nullopt;
  return all->front();
}

std::optional<double> last_of(const RunFacts& facts, const std::string& name) {
  const auto* const all = find_column(facts, name);
  if (all == nullptr || all->empty()) return std::nullopt;
  return all->back();
}

std::optional<std::int64_t> peak_memory(const RunFacts& facts) {
  if (!any_measured(facts.memory)) return std::nullopt;
  return *std::max_element(facts.memory.begin(), facts.memory.end());
}

std::string rate_name(const std::string& name) {
  const std::string suffix = kPerSecond;
  if (!name.ends_with(suffix) || name == suffix) return {};
  return name.substr(0, name.size() - suffix.size()) + "/s";
}

}  // namespace smp::report
