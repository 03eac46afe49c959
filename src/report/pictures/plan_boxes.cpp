// report/pictures/plan_boxes.cpp: a tree of rows, then boxes from the top.
#include "report/pictures/plan_boxes.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <utility>

#include "base/check.h"
#include "partition/text/module_names.h"

namespace smp::report {
namespace {

using base::concat;
using partitioning::parent_path;
using Row = PartitionPlan::Row;

constexpr double kUnseen = 0.0005;  // share of the cost that gets no box if there are no weights

std::string last_part(const std::string& path) { return path.substr(path.rfind('.') + 1); }

// The number that ends a path, as 3 of "encoder.block.3".
std::optional<int> number_of(const std::string& path) {
  const std::string part = last_part(path);
  const char* last = part.data() + part.size();
  int number = 0;
  const auto [end, error] = std::from_chars(part.data(), last, number);
  if (error != std::errc() || end != last) return std::nullopt;
  return number;
}

// A row and what is below it.
struct Node {
  const Row* row = nullptr;
  std::vector<int> children;
  int parent = -1;
  double own = 0;
  double cost = 0;
  int modules = 1;
  std::int64_t elements = 0;
  bool whole = true;     // all on one stage
  bool weights = false;  // any, tied ones included
};

class Folder {
 public:
  Folder(const PartitionPlan& plan, bool coarse) : coarse_(coarse), nodes_(plan.rows().size()) {
    std::map<std::string, int> index;
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      nodes_[i].row = &plan.rows()[i];
      index[plan.rows()[i].path] = static_cast<int>(i);
    }
    for (std::size_t i = 1; i < nodes_.size(); ++i) {
      const auto above = index.find(parent_path(plan.rows()[i].path));
      nodes_[i].parent = above == index.end() ? 0 : above->second;
      nodes_[nodes_[i].parent].children.push_back(static_cast<int>(i));
    }
    choose_measure();
    for (std::size_t i = nodes_.size(); i-- > 1;) add_to_parent(static_cast<int>(i));
    box_of_.assign(nodes_.size(), -1);
  }

  PlanBoxes fold() {
    if (nodes_.empty()) return std::move(result_);
    result_.boxes.push_back(box_for(0));
    box_of_[0] = 0;
    open(0, 0);
    find_ties();
    return std::move(result_);
  }

 private:
  void choose_measure() {
    double cost = 0;
    double bytes = 0;
    for (const Node& node : nodes_) {
      cost += node.row->cost;
      bytes += static_cast<double>(node.row->bytes);
    }
    result_.measure = cost > 0 ? "cost" : bytes > 0 ? "bytes of weights" : "modules";
    for (Node& node : nodes_) {
      node.own = cost > 0    ? node.row->cost / cost
                 : bytes > 0 ? static_cast<double>(node.row->bytes) / bytes
                             : 1 / static_cast<double>(nodes_.size());
      node.cost = node.own;
      node.elements = node.row->elements;
      node.weights = !node.row->parameters.empty();
    }
  }

  void add_to_parent(int index) {
    const Node& node = nodes_[index];
    Node& parent = nodes_[node.parent];
    parent.cost += node.cost;
    parent.modules += node.modules;
    parent.elements += node.elements;
    parent.whole &= node.whole && node.row->pp_rank == parent.row->pp_rank;
    parent.weights |= node.weights;
  }

  PlanBox box_for(int index) const {
    const Node& node = nodes_[index];
    PlanBox box;
    box.name = node.row->path.empty() ? "the model" : node.row->path;
    box.stage = node.row->pp_rank;
    box.cost = node.cost;
    return box;
  }

  // Nothing to see: no weights, next to no cost, on the stage of its parent.
  bool unseen(int index) const {
    const Node& node = nodes_[index];
    return node.whole && !node.weights && node.cost < kUnseen &&
           node.row->pp_rank == nodes_[node.parent].row->pp_rank;
  }

  // A list of modules and nothing else: its children stand below its parent.
  bool passed_over(int index) const {
    const Node& node = nodes_[index];
    return !node.whole && node.row->parameters.empty() && node.own < kUnseen &&
           node.row->pp_rank == nodes_[node.parent].row->pp_rank &&
           std::all_of(node.children.begin(), node.children.end(),
                       [&](int child) { return number_of(nodes_[child].row->path).has_value(); });
  }

  // Adds the boxes below the one of module `index`, which is `box`.
  void open(int index, int box) {
    PlanBox own = box_for(index);
    own.name += " itself";
    own.cost = nodes_[index].own;
    own.parent = box;
    own.elements = nodes_[index].row->elements;
    std::vector<int> run;  // siblings to be joined in one box
    for (const int child : visible_children(index, box, own)) {
      if (!run.empty() && !continues(run, child)) close(run, box);
      if (nodes_[child].whole) {
        run.push_back(child);
        continue;
      }
      const int made = add(box_for(child), box);
      box_of_[child] = made;
      open(child, made);
    }
    if (!run.empty()) close(run, box);
    finish_own(std::move(own), index, box);
  }

  // Children that get boxes; counts the others where they belong.
  std::vector<int> visible_children(int index, int box, PlanBox& own) {
    std::vector<int> visible;
    for (const int child : nodes_[index].children) {
      if (unseen(child)) {
        own.modules += nodes_[child].modules;
        own.cost += nodes_[child].cost;
      } else if (passed_over(child)) {
        own.modules += 1;
        own.cost += nodes_[child].own;
        box_of_[child] = box;
        const auto below = visible_children(child, box, own);
        visible.insert(visible.end(), below.begin(), below.end());
      } else {
        visible.push_back(child);
      }
    }
    return visible;
  }

  // What a module has besides its children gets a box only if it can be seen.
  void finish_own(PlanBox own, int index, int box) {
    PlanBox& parent = result_.boxes[box];
    parent.modules += 1;
    if (own.cost < kUnseen && own.elements == 0) {
      parent.modules += own.modules;
      return;
    }
    own.stage = nodes_[index].row->pp_rank;
    box_of_[index] = add(std::move(own), box);
  }

  bool continues(const std::vector<int>& run, int child) const {
    const Node& last = nodes_[run.back()];
    const Node& next = nodes_[child];
    if (!next.whole || next.row->pp_rank != last.row->pp_rank) return false;
    if (coarse_) return true;
    const auto before = number_of(last.row->path);
    const auto after = number_of(next.row->path);
    return before && after && *after == *before + 1 && next.parent == last.parent;
  }

  void close(std::vector<int>& run, int parent) {
    PlanBox box = box_for(run.front());
    box.name = name_of(run);
    box.cost = 0;
    for (const int member : run) {
      box.cost += nodes_[member].cost;
      box.modules += nodes_[member].modules;
      box.elements += nodes_[member].elements;
    }
    const int made = add(std::move(box), parent);
    for (const int member : run) box_of_[member] = made;
    run.clear();
  }

  std::string name_of(const std::vector<int>& run) const {
    const std::string& first = nodes_[run.front()].row->path;
    const std::string& last = nodes_[run.back()].row->path;
    if (run.size() == 1) return first;
    const auto from = number_of(first);
    const auto to = number_of(last);
    const int count = static_cast<int>(run.size());
    const bool siblings = parent_path(first) == parent_path(last);
    const bool range = siblings && from && to && *to - *from + 1 == count;
    if (!range) return concat(first, " to ", siblings ? last_part(last) : last);
    return concat(parent_path(first), "[", *from, ":", *to + 1, "]");
  }

  int add(PlanBox box, int parent) {
    const int index = static_cast<int>(result_.boxes.size());
    box.parent = parent;
    result_.boxes.push_back(std::move(box));
    result_.boxes[parent].children.push_back(index);
    return index;
  }

  int box_of(int node) const {
    while (box_of_[node] < 0) node = nodes_[node].parent;
    return box_of_[node];
  }

  // "weight float32[8], bias = a.bias" holds the weight a.bias that module a registered.
  void find_ties() {
    std::map<std::string, std::vector<int>> holders;
    std::map<std::string, int> index;
    for (std::size_t i = 0; i < nodes_.size(); ++i)
      index[nodes_[i].row->path] = static_cast<int>(i);
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      const std::string& text = nodes_[i].row->parameters;
      for (auto at = text.find(" = "); at != std::string::npos; at = text.find(" = ", at + 1)) {
        const std::string weight = text.substr(at + 3, text.find(", ", at) - at - 3);
        const auto owner = index.find(parent_path(weight));
        if (owner == index.end()) continue;
        auto& boxes = holders[weight];
        if (boxes.empty()) boxes.push_back(box_of(owner->second));
        boxes.push_back(box_of(static_cast<int>(i)));
      }
    }
    for (auto& [weight, boxes] : holders) {
      std::sort(boxes.begin(), boxes.end());
      boxes.erase(std::unique(boxes.begin(), boxes.end()), boxes.end());
      if (boxes.size() > 1) result_.ties.push_back({weight, std::move(boxes)});
    }
  }

  bool coarse_;
  std::vector<Node> nodes_;
  std::vector<int> box_of_;  // of a node, or -1 if it is in that of its parent
  PlanBoxes result_;
};

}  // namespace

PlanBoxes fold_plan(const PartitionPlan& plan, int most) {
  PlanBoxes fine = Folder(plan, false).fold();
  if (static_cast<int>(fine.boxes.size()) <= most) return fine;
  return Folder(plan, true).fold();
}

}  // namespace smp::report
