// partition/plan/plan_cache.cpp: files named by their key.
#include "partition/plan/plan_cache.h"

#include <link.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string_view>

#include "base/check.h"
#include "base/files.h"
#include "base/log.h"
#include "partition/plan/plan_check.h"

namespace smp::partitioning {
namespace {

std::string user_cache() {
  for (const auto& [variable, below] :
       {std::pair("XDG_CACHE_HOME", "/smp/plans"), std::pair("HOME", "/.cache/smp/plans")}) {
    const char* value = std::getenv(variable);
    if (value != nullptr && *value != '\0') return std::string(value) + below;
  }
  return {};
}

std::string folder_of(const std::string& setting) {
  if (setting == "off") return {};
  return setting == "auto" ? user_cache() : setting;
}

/// Returns the path, size and modification time of a file as text.
std::string text_of_file(const std::filesystem::path& path) {
  std::error_code ignored;
  const auto file = std::filesystem::canonical(path, ignored);
  const auto written = std::filesystem::last_write_time(file, ignored).time_since_epoch();
  return base::concat(file.string(), ' ', std::filesystem::file_size(file, ignored), ' ',
                      written.count(), ' ');
}

/// Callback of dl_iterate_phdr: appends path, size and date of a shared library. All libraries
/// count, since any may hold modules. The program itself has no name here and is left out.
int add_library(dl_phdr_info* library, std::size_t, void* text) {
  const std::string_view name = library->dlpi_name;
  if (name.starts_with('/')) *static_cast<std::string*>(text) += text_of_file(name);
  return 0;
}

}  // namespace

PlanCache::PlanCache(const std::string& setting) : folder_(folder_of(setting)) {}

std::string PlanCache::file_of(std::uint64_t key) const {
  char name[32];
  std::snprintf(name, sizeof name, "/%016llx.json", static_cast<unsigned long long>(key));
  return folder_ + name;
}

std::string PlanCache::simulation_file_of(std::uint64_t key) const {
  return file_of(key) + ".trace";
}

std::string PlanCache::find_simulation(std::uint64_t key) const {
  const auto file = simulation_file_of(key);
  return base::file_exists(file) ? base::read_file(file) : std::string();
}

std::optional<PartitionPlan> PlanCache::find(std::uint64_t key, const ModuleTree& tree,
                                             int pp_size) const {
  if (folder_.empty() || !base::file_exists(file_of(key))) return std::nullopt;
  const auto file = file_of(key);
  try {
    auto plan = PartitionPlan::read(file);
    check_plan(plan, tree, pp_size, file);
    base::log(base::LogLevel::kInfo, "the plan comes from ", file,
              " (an earlier start; plan_cache = off makes a new one)");
    return plan;
  } catch (const Error& error) {
    base::log(base::LogLevel::kWarning, "a plan of an earlier start is not used: ", error.what());
    return std::nullopt;
  }
}

void PlanCache::store(std::uint64_t key, const PartitionPlan& plan,
                      const std::string& simulation) const {
  if (folder_.empty()) return;
  try {
    base::create_directories(folder_);
    base::write_file(file_of(key), plan.to_json());
    base::write_file(simulation_file_of(key), simulation);
  } catch (const Error& error) {
    base::log(base::LogLevel::kWarning,
              "the plan is not kept for the next start (plan_cache): ", error.what());
  }
}

std::string program_identity() {
  std::string text = text_of_file("/proc/self/exe");
  ::dl_iterate_phdr(&add_library, &text);
  for (const char byte : base::read_file("/proc/self/cmdline")) text += byte == '\0' ? ' ' : byte;
  return text;
}

}  // namespace smp::partitioning
