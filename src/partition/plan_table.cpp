// partition/plan_table.cpp: finds the outermost whole modules of a stage and lays out the table.
#include "partition/plan_table.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <map>
#include <optional>

#include "base/check.h"

namespace smp::partition {
namespace {

using base::concat;
using Row = PartitionPlan::Row;

std::string parent_path(const std::string& path) {
  const auto dot = path.rfind('.');
  return dot == std::string::npos ? std::string() : path.substr(0, dot);
}

// What the rows below and including a module have in common.
struct Subtree {
  bool whole = true;        // all on the stage of the module itself
  bool parameters = false;  // any, tied ones included
};

std::map<std::string, Subtree> subtrees(const PartitionPlan& plan) {
  std::map<std::string, Subtree> found;
  std::map<std::string, int> stages;
  for (const Row& row : plan.rows()) stages[row.path] = row.pp_rank;
  for (auto row = plan.rows().rbegin(); row != plan.rows().rend(); ++row) {
    Subtree& here = found[row->path];
    here.parameters |= !row->parameters.empty();
    if (row->path.empty()) continue;
    Subtree& parent = found[parent_path(row->path)];
    parent.whole &= here.whole && stages[parent_path(row->path)] == row->pp_rank;
    parent.parameters |= here.parameters;
  }
  return found;
}

// "encoder.block.3" as ("encoder.block", 3).
struct Numbered {
  std::string prefix;
  int number;
};

std::optional<Numbered> numbered(const std::string& path) {
  const auto dot = path.rfind('.');
  const std::string last = dot == std::string::npos ? path : path.substr(dot + 1);
  int number = 0;
  const auto [end, error] = std::from_chars(last.data(), last.data() + last.size(), number);
  if (error != std::errc() || end != last.data() + last.size()) return std::nullopt;
  return Numbered{parent_path(path), number};
}

std::string range_name(const Numbered& first, int last) {
  const std::string numbers = concat("[", first.number, ":", last + 1, "]");
  return first.prefix.empty() ? numbers : first.prefix + numbers;
}

// Joins neighbours a.0, a.1, a.2 to a[0:3].
std::vector<std::string> with_ranges(const std::vector<std::string>& paths) {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < paths.size();) {
    const auto first = numbered(paths[i]);
    std::size_t next = i + 1;
    for (; first && next < paths.size(); ++next) {
      const auto other = numbered(paths[next]);
      const int expected = first->number + static_cast<int>(next - i);
      if (!other || other->prefix != first->prefix || other->number != expected) break;
    }
    const int last = first ? first->number + static_cast<int>(next - i) - 1 : 0;
    names.push_back(next > i + 1 ? range_name(*first, last) : paths[i]);
    i = next;
  }
  return names;
}

std::string bar(double share) {
  constexpr int kWidth = 10;
  const int full = static_cast<int>(share * kWidth + 0.5);
  std::string text;
  for (int i = 0; i < kWidth; ++i) text += i < full ? "▇" : "░";
  return text;
}

template <class... Values>
std::string format(const char* layout, Values... values) {
  char text[64];
  std::snprintf(text, sizeof text, layout, values...);
  return text;
}

std::string join(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += text.empty() ? name : ", " + name;
  return text;
}

}  // namespace

std::string short_count(std::int64_t count) {
  const double value = static_cast<double>(count);
  if (count < 1000) return format("%.0f", value);
  if (count < 999'950) return format("%.1f K", value / 1e3);
  if (count < 999'950'000) return format("%.1f M", value / 1e6);
  return format("%.1f G", value / 1e9);
}

std::vector<std::string> stage_modules(const PartitionPlan& plan, int pp_rank) {
  const auto trees = subtrees(plan);
  std::vector<std::string> with_parameters;
  std::vector<std::string> all;
  for (const Row& row : plan.rows()) {
    const Subtree& here = trees.at(row.path);
    if (row.pp_rank != pp_rank) continue;
    const bool own = !here.whole && !row.parameters.empty();
    const bool inside = !row.path.empty() && trees.at(parent_path(row.path)).whole;
    if (inside || !(here.whole || own)) continue;
    const std::string path = row.path.empty() ? "the model" : row.path;
    const std::string name = own ? path + " (its own parameters)" : path;
    all.push_back(name);
    if (here.parameters) with_parameters.push_back(name);
  }
  return with_ranges(with_parameters.empty() ? all : with_parameters);
}

std::string plan_table(const PartitionPlan& plan) {
  std::vector<std::int64_t> elements(plan.pp_size(), 0);
  std::vector<std::int64_t> bytes(plan.pp_size(), 0);
  for (const Row& row : plan.rows()) {
    elements.at(row.pp_rank) += row.elements;
    bytes.at(row.pp_rank) += row.bytes;
  }
  const double largest = static_cast<double>(*std::max_element(bytes.begin(), bytes.end()));
  std::string text = "stage  parameters       MiB  share       modules\n";
  for (int stage = 0; stage < plan.pp_size(); ++stage) {
    const auto size = static_cast<double>(bytes[stage]);
    text +=
        format("%5d  %10s  %8.2f  ", stage, short_count(elements[stage]).c_str(), size / (1 << 20));
    text +=
        concat(bar(largest > 0 ? size / largest : 0), "  ", join(stage_modules(plan, stage)), "\n");
  }
  return text;
}

}  // namespace smp::partition
