// report/pictures/memory_use.cpp: one list.
#include "report/pictures/memory_use.h"

#include <algorithm>

#include "base/check.h"
#include "config/json.h"

namespace smp::report {
namespace {

constexpr const char* kFormat = "smp-memory";
constexpr std::int64_t kMost = std::int64_t{1} << 52;  // bytes

}  // namespace

bool any_measured(const MemoryUse& stages) {
  return std::any_of(stages.begin(), stages.end(), [](auto bytes) { return bytes > 0; });
}

std::string memory_use_to_json(const MemoryUse& stages) {
  return base::json_text({{"format", kFormat}, {"peak_bytes", stages}}) + "\n";
}

MemoryUse memory_use_from_json(const std::string& text, const std::string& name) {
  const auto json = base::parse_json(text, name);
  const auto format = base::json_member<std::string>(json, "format", name);
  SMP_REQUIRE(format == kFormat, name, ": the format is ", base::excerpt(format), ", expected ",
              kFormat);
  auto stages = base::json_member<MemoryUse>(json, "peak_bytes", name);
  for (const auto bytes : stages) {
    SMP_REQUIRE(bytes >= 0 && bytes <= kMost, name, ": \"peak_bytes\" holds ", bytes,
                ", expected at least 0 and at most ", kMost);
  }
  return stages;
}

}  // namespace smp::report
