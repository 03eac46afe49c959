// report/pictures/traffic.h: who sent how much to whom: a square of numbers, as a file and as a
// picture.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace smp::report {

/// The messages between the ranks of a pipeline in some steps. The matrices are indexed [from][to].
struct Traffic {
  std::int64_t steps = 0;
  std::vector<std::vector<std::int64_t>> messages = {};  ///< [from][to]; to itself: 0
  std::vector<std::vector<std::int64_t>> bytes = {};     ///< of tensors
  /// The paths that messages took, such as "host_shm", by [from][to]; empty if not known.
  std::vector<std::vector<std::string>> paths = {};

  [[nodiscard]] std::size_t size() const noexcept { return bytes.size(); }
};

std::string traffic_to_json(const Traffic& traffic);
/// Reads what traffic_to_json() wrote.
/// @throws UsageError  `text`, of the file `name`, is something else, or no square
Traffic traffic_from_json(const std::string& text, const std::string& name);

/// Returns an SVG file: a row for each sender, a column for each receiver; the darker a field, the
/// more bytes per step.
/// @param traffic  of at least one step
std::string draw_traffic(const Traffic& traffic);

}  // namespace smp::report
