// report/pictures/traffic.cpp: bytes and messages of a mean step.
#include "report/pictures/traffic.h"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include "base/check.h"
#include "config/json.h"
#include "partition/text/short_text.h"
#include "report/page/svg_writer.h"

namespace smp::report {
namespace {

using base::concat;
using base::Json;
using base::json_member;
using partitioning::short_bytes;
using Square = std::vector<std::vector<std::int64_t>>;

constexpr const char* kFormat = "smp-traffic";
constexpr std::size_t kMostRanks = 1024;  // a picture of more would have a million cells

constexpr double kLeft = 92, kTop = 100, kRight = 16;
constexpr double kLeastWidth = 640;

Square square_from_json(const Json& json, const char* key, const std::string& name) {
  auto square = json_member<Square>(json, key, name);
  SMP_REQUIRE(!square.empty() && square.size() <= kMostRanks, name, ": \"", key, "\" has ",
              square.size(), " rows, expected at least 1 and at most ", kMostRanks);
  // So few that the sum is a number as well.
  const auto most = std::numeric_limits<std::int64_t>::max() /
                    static_cast<std::int64_t>(square.size() * square.size());
  for (const auto& row : square) {
    SMP_REQUIRE(row.size() == square.size(), name, ": \"", key, "\" has ", square.size(),
                " rows, and one of ", row.size(), " numbers");
    for (const auto number : row) {
      SMP_REQUIRE(number >= 0 && number <= most, name, ": \"", key, "\" holds ", number,
                  ", expected at least 0 and at most ", most);
    }
  }
  return square;
}

std::int64_t sum_of(const Square& square) {
  std::int64_t sum = 0;
  for (const auto& row : square) {
    for (const auto number : row) sum += number;
  }
  return sum;
}

std::int64_t most_of(const Square& square) {
  std::int64_t most = 0;
  for (const auto& row : square) most = std::max(most, *std::max_element(row.begin(), row.end()));
  return most;
}

using Paths = std::vector<std::vector<std::string>>;

/// Reads the paths of the messages; empty for older files, which lack them. @throws UsageError
Paths paths_from_json(const Json& json, std::size_t ranks, const std::string& name) {
  if (!json.contains("paths")) return {};
  auto paths = json_member<Paths>(json, "paths", name);
  const bool square =
      paths.size() == ranks &&
      std::all_of(paths.begin(), paths.end(), [&](const auto& row) { return row.size() == ranks; });
  SMP_REQUIRE(square, name, ": \"paths\" are not those between ", ranks, " ranks");
  return paths;
}

/// Returns "all over host_shm", or the number of each path.
std::string paths_text(const Paths& paths) {
  std::map<std::string, int> counts;
  for (std::size_t i = 0; i < paths.size(); ++i) {
    for (std::size_t j = 0; j < paths.size(); ++j) counts[paths[i][j]] += i != j;
  }
  std::erase_if(counts, [](const auto& each) { return each.second == 0; });
  if (counts.size() == 1) return concat("all over ", counts.begin()->first);
  std::string text;
  for (const auto& [path, count] : counts) {
    text += concat(text.empty() ? "" : "; ", count, " over ", path);
  }
  return text;
}

class TrafficPicture {
 public:
  explicit TrafficPicture(const Traffic& traffic)
      : traffic_(traffic),
        cell_(std::clamp((kLeastWidth - kLeft - kRight) / static_cast<double>(traffic.size()), 22.0,
                         96.0)),
        height_(std::min(cell_, 52.0)),
        svg_width_(std::max(kLeastWidth, left_of(traffic.size()) + kRight)),
        svg_(svg_width_, top_of(traffic.size()) + kRight) {}

  std::string draw() {
    draw_head();
    for (std::size_t i = 0; i < traffic_.size(); ++i) {
      svg_.text({kLeft - 10, top_of(i) + height_ / 2 + 4}, concat("from ", i),
                {.anchor = "end", .group = "sender"});
      svg_.text({left_of(i) + cell_ / 2, kTop - 8}, concat(cell_ < 40 ? "" : "to ", i),
                {.anchor = "middle", .group = "receiver"});
      for (std::size_t j = 0; j < traffic_.size(); ++j) draw_cell(i, j);
    }
    return std::move(svg_).finish();
  }

 private:
  double left_of(std::size_t column) const { return kLeft + cell_ * static_cast<double>(column); }
  double top_of(std::size_t row) const { return kTop + height_ * static_cast<double>(row); }
  std::string per_step(std::int64_t number) const {
    return short_number(static_cast<double>(number) / static_cast<double>(traffic_.steps));
  }

  void draw_head() {
    svg_.headline(concat("Between ranks: ", short_bytes(sum_of(traffic_.bytes) / traffic_.steps),
                         " of tensors in ", per_step(sum_of(traffic_.messages)),
                         " messages a step"));
    svg_.text({20, 46},
              concat("mean of ", traffic_.steps, traffic_.steps == 1 ? " step" : " steps",
                     "; the darker, the more bytes; below them the number of messages"),
              {.fill = "#666666"});
    if (traffic_.paths.empty()) return;
    svg_.text({20, 64}, fitted(paths_text(traffic_.paths), 12, svg_width_ - 40),
              {.fill = "#666666", .group = "paths"});
  }

  void draw_cell(std::size_t from, std::size_t to) {
    const Point corner{left_of(to), top_of(from)};
    if (from == to) {
      svg_.rectangle(corner, cell_, height_, {.fill = "#f4f4f4", .stroke = "#dddddd"});
      return;
    }
    const auto bytes = traffic_.bytes[from][to], messages = traffic_.messages[from][to];
    const double share = most_ == 0 ? 0 : static_cast<double>(bytes) / static_cast<double>(most_);
    const auto amount = short_bytes(bytes / traffic_.steps);
    svg_.rectangle(
        corner, cell_, height_,
        {.fill = color(212, 0.6, 0.97 - 0.5 * share), .stroke = "#bbbbbb", .group = "cell"},
        concat("rank ", from, " to rank ", to, ": ", amount, " in ", per_step(messages),
               " messages a step",
               traffic_.paths.empty() ? "" : concat(" over ", traffic_.paths[from][to])));
    const char* const ink = share > 0.6 ? "#ffffff" : "#333333";
    const Point middle{corner.x + cell_ / 2, corner.y + height_ / 2};
    svg_.text({middle.x, middle.y - 2}, fitted(amount, 12, cell_ - 6),
              {.fill = ink, .anchor = "middle", .group = "bytes"});
    if (height_ < 34) return;
    svg_.text({middle.x, middle.y + 13}, fitted(per_step(messages), 11, cell_ - 6),
              {.size = 11, .fill = ink, .anchor = "middle", .group = "messages"});
  }

  const Traffic& traffic_;
  const double cell_, height_, svg_width_;
  const std::int64_t most_ = most_of(traffic_.bytes);
  SvgWriter svg_;
};

}  // namespace

std::string traffic_to_json(const Traffic& traffic) {
  Json json = {{"format", kFormat},
               {"version", 1},
               {"steps", traffic.steps},
               {"messages", traffic.messages},
               {"bytes", traffic.bytes}};
  if (!traffic.paths.empty()) json["paths"] = traffic.paths;
  return json.dump() + "\n";
}

Traffic traffic_from_json(const std::string& text, const std::string& name) {
  const Json json = base::parse_json(text, name);
  SMP_REQUIRE(json_member<std::string>(json, "format", name) == kFormat, name,
              ": \"format\" is not \"", kFormat, "\"");
  Traffic traffic{json_member<std::int64_t>(json, "steps", name),
                  square_from_json(json, "messages", name),
                  square_from_json(json, "bytes", name),
                  {}};
  SMP_REQUIRE(traffic.steps > 0 && traffic.messages.size() == traffic.bytes.size(), name, ": ",
              traffic.steps, " steps, ", traffic.messages.size(), " rows of messages and ",
              traffic.bytes.size(), " of bytes");
  traffic.paths = paths_from_json(json, traffic.size(), name);
  return traffic;
}

std::string draw_traffic(const Traffic& traffic) {
  SMP_ASSERT(traffic.steps > 0, "no step");
  return TrafficPicture(traffic).draw();
}

}  // namespace smp::report
