// schedule/named_lists.cpp: see the header.
#include "schedule/named_lists.h"

#include <algorithm>
#include <charconv>
#include <string_view>
#include <system_error>

#include "base/check.h"
#include "schedule/list_check.h"
#include "schedule/list_generators.h"

namespace smp::schedule {
namespace {

constexpr std::string_view kFilePrefix = "file:";

/// The parts of a name such as "1f1b+2": a generator, and how many more microbatches a rank may
/// keep.
struct GeneratorName {
  std::string_view generator;
  int more = 0;
};

/// Splits a name at its "+". An unknown form gives an empty generator.
/// @param most  larger numbers are cut to it, since no schedule uses more
GeneratorName split_name(std::string_view name, int most) {
  const auto plus = name.find('+');
  if (plus == std::string_view::npos) return {name, 0};
  const auto digits = name.substr(plus + 1);
  int more = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), more);
  const bool is_number = error == std::errc() && end == digits.data() + digits.size() && more >= 0;
  return {is_number ? name.substr(0, plus) : std::string_view(), std::min(more, most)};
}

ScheduleLists from_file(const std::string& name, const StepShape& shape) {
  const auto path = name.substr(kFilePrefix.size());
  auto lists = ScheduleLists::read(path);
  SMP_REQUIRE(lists.pp_size() == shape.pp_size, path, ": a schedule for ", lists.pp_size(),
              " ranks, and the pipeline has ", shape.pp_size);
  SMP_REQUIRE(lists.microbatches == shape.microbatches, path, ": a schedule for ",
              lists.microbatches, " microbatches, and a step has ", shape.microbatches,
              "; change the file or the key microbatches");
  check_lists(lists, path);
  return lists;
}

}  // namespace

ScheduleLists lists_named(const std::string& name, const StepShape& shape) {
  if (name.starts_with(kFilePrefix)) return from_file(name, shape);
  if (name == "simple") return simple_lists(shape.pp_size, shape.microbatches);
  SMP_REQUIRE(name != "interleaved",
              "the schedule \"interleaved\" has no lists: what is ready runs; \"1f1b+N\" is the "
              "nearest that has");
  const auto [generator, more] = split_name(name, shape.microbatches);
  if (generator == "1f1b") {
    return one_forward_one_backward_lists(shape.pp_size, shape.microbatches, more);
  }
  SMP_REQUIRE(generator == "zero_bubble", "unknown pipeline schedule \"", name,
              "\"; use \"simple\", \"interleaved\", \"1f1b\", \"zero_bubble\" (or "
              "\"1f1b+N\", \"zero_bubble+N\") or \"file:PATH\"");
  return zero_bubble_lists(shape.pp_size, shape.microbatches, more);
}

}  // namespace smp::schedule
