// partition/search/balance.cpp: descent on the sum over stages of the eighth power of every load, a
// smooth stand-in for the maximum.
#include "partition/search/balance.h"

#include <algorithm>
#include <array>
#include <numeric>

namespace smp::partitioning {
namespace {

// Cost, seconds and bytes, each as a share of what a stage should have.
using Load = std::array<double, 3>;

constexpr int kCalmest = 6;  // stages that a node of a loaded stage may go to
constexpr std::size_t kLargestPart = 100;
constexpr double kLeastGain = 1e-9;

double eighth_power(double x) {
  const double square = x * x, fourth = square * square;
  return fourth * fourth;
}

double strain(const Load& load) {
  return eighth_power(load[0]) + eighth_power(load[1]) + eighth_power(load[2]);
}

Load sum(const Load& a, const Load& b) { return {a[0] + b[0], a[1] + b[1], a[2] + b[2]}; }
Load difference(const Load& a, const Load& b) { return {a[0] - b[0], a[1] - b[1], a[2] - b[2]}; }

// Bytes a node brings to a stage: weight, gradient and two moments; a microbatch a stage in flight.
double bytes_of_node(const CostNode& node, const simulate::Machine& machine) {
  return static_cast<double>(node.weight_bytes + 3 * node.gradient_bytes + node.buffer_bytes) +
         static_cast<double>(node.activation_bytes) * machine.stages;
}

class Balancer {
 public:
  Balancer(const CostTree& tree, const simulate::Machine& machine, std::vector<int> stages,
           const BalanceOptions& options)
      : tree_(tree),
        stages_(std::move(stages)),
        price_(options.crossing_price),
        budget_(options.budget),
        on_stage_(machine.stages),
        stuck_(machine.stages, false),
        load_(machine.stages, Load{}) {
    measure_stages(machine);
    measure_nodes(machine);
    weigh_memory(machine);
    for (std::size_t i = 0; i < stages_.size(); ++i) {
      on_stage_[stages_[i]].push_back(static_cast<int>(i));
      load_[stages_[i]] = sum(load_[stages_[i]], share(static_cast<int>(i), stages_[i]));
    }
  }

  std::vector<int> run() {
    while (budget_ > 0) {
      const std::vector<int> order = by_strain();
      const auto next =
          std::find_if(order.begin(), order.end(), [this](int s) { return !stuck_[s]; });
      if (next == order.end()) break;
      const auto count = std::min<std::ptrdiff_t>(kCalmest, order.end() - next - 1);
      const std::vector<int> targets(order.rbegin(), order.rbegin() + count);
      stuck_[*next] = !relieve(*next, targets);
    }
    return stages_;
  }

 private:
  // What a stage can take of each kind, all stages together 1.
  void measure_stages(const simulate::Machine& machine) {
    double speeds = 0, memory = 0;
    for (int s = 0; s < machine.stages; ++s) {
      speeds += machine.speed(s);
      memory += machine.memory.empty() ? 1 : static_cast<double>(machine.memory[s]);
    }
    for (int s = 0; s < machine.stages; ++s) {
      const double speed = machine.speed(s) / speeds;
      const double bytes =
          machine.memory.empty() ? 0 : static_cast<double>(machine.memory[s]) / memory;
      inverse_.push_back({1 / speed, 1 / speed, bytes > 0 ? 1 / bytes : 0});
    }
  }

  void measure_nodes(const simulate::Machine& machine) {
    Load total{};
    for (const CostNode& node : tree_.nodes) {
      nodes_.push_back({node.own, node.seconds, bytes_of_node(node, machine)});
      total = sum(total, nodes_.back());
    }
    // Nothing can push a load below that of the largest node.
    Load least{1, 1, 1};
    for (std::size_t k = 0; k < least.size(); ++k) {
      for (const Load& node : nodes_) {
        if (total[k] > 0) least[k] = std::max(least[k], node[k] / total[k] * fastest(k));
      }
      for (Load& node : nodes_) node[k] = total[k] > 0 ? node[k] / total[k] / least[k] : 0;
    }
  }

  /// Bytes count by how near a stage is to its limit: where there is room, even memory is of no
  /// use.
  void weigh_memory(const simulate::Machine& machine) {
    double bytes = 0, limits = 0;
    for (const CostNode& node : tree_.nodes) bytes += bytes_of_node(node, machine);
    for (const auto limit : machine.memory) limits += static_cast<double>(limit);
    if (bytes >= limits) return;
    for (Load& inverse : inverse_) inverse[2] *= bytes / limits;
  }

  double fastest(std::size_t kind) const {
    double least = inverse_.front()[kind];
    for (const Load& inverse : inverse_) least = std::min(least, inverse[kind]);
    return least;
  }

  Load share(int node, int stage) const {
    Load load = nodes_[node];
    for (std::size_t k = 0; k < load.size(); ++k) load[k] *= inverse_[stage][k];
    return load;
  }

  bool may_move(int node) const { return node != 0 && tree_.nodes[node].fixed < 0; }

  // A node, and of its subtree all that is connected to it on its stage.
  struct Part {
    std::vector<int> nodes;
    Load load{};
  };

  struct Change {
    double gain = 0;
    Part part;
    int target = -1;
    Part other;  // comes back for it; empty: nothing does
  };

  Part part_of(int node) const {
    Part part;
    const int stage = stages_[node];
    std::vector<int> open{node};
    while (!open.empty() && part.nodes.size() < kLargestPart) {
      const int next = open.back();
      open.pop_back();
      part.nodes.push_back(next);
      part.load = sum(part.load, nodes_[next]);
      for (const int child : tree_.nodes[next].children) {
        if (stages_[child] == stage && may_move(child)) open.push_back(child);
      }
    }
    return part;
  }

  Load share(const Part& part, int stage) const {
    Load load = part.load;
    for (std::size_t k = 0; k < load.size(); ++k) load[k] *= inverse_[stage][k];
    return load;
  }

  // By how much more links between parents and children cross stages if `part` goes to `target`.
  int more_crossings(const Part& part, int target) const {
    const int source = stages_[part.nodes.front()];
    const auto change = [&](int other) {
      return static_cast<int>(stages_[other] != target) -
             static_cast<int>(stages_[other] != source);
    };
    int count = change(tree_.nodes[part.nodes.front()].parent);
    for (const int node : part.nodes) {
      for (const int child : tree_.nodes[node].children) count += change(child);
    }
    const auto inside = static_cast<int>(part.nodes.size()) - 1;  // links that do not change
    return count - inside;
  }

  double price_of(const Part& part, int target) const {
    return price_ == 0 ? 0 : price_ * more_crossings(part, target);
  }

  double gain_of_move(const Part& part, int target) {
    budget_ -= static_cast<int>(part.nodes.size());
    const int source = stages_[part.nodes.front()];
    return strain(load_[source]) + strain(load_[target]) -
           strain(difference(load_[source], share(part, source))) -
           strain(sum(load_[target], share(part, target))) - price_of(part, target);
  }

  double gain_of_swap(const Part& part, const Part& other) {
    budget_ -= static_cast<int>(part.nodes.size() + other.nodes.size());
    const int a = stages_[part.nodes.front()], b = stages_[other.nodes.front()];
    const Load in_a = sum(difference(load_[a], share(part, a)), share(other, a));
    const Load in_b = sum(difference(load_[b], share(other, b)), share(part, b));
    return strain(load_[a]) + strain(load_[b]) - strain(in_a) - strain(in_b) - price_of(part, b) -
           price_of(other, a);
  }

  void move(const Part& part, int target) {
    for (const int node : part.nodes) {
      const int source = stages_[node];
      load_[source] = difference(load_[source], share(node, source));
      load_[target] = sum(load_[target], share(node, target));
      std::erase(on_stage_[source], node);
      on_stage_[target].push_back(node);
      stages_[node] = target;
      stuck_[source] = stuck_[target] = false;
    }
  }

  // Stages from the most to the least loaded.
  std::vector<int> by_strain() const {
    std::vector<int> order(load_.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [this](int a, int b) { return strain(load_[a]) > strain(load_[b]); });
    return order;
  }

  // The best move of a part of `stage` to a target or to its parent; if none helps, the best swap
  // with a part of a target.
  bool relieve(int stage, const std::vector<int>& targets) {
    Change best;
    const std::vector<Part> parts = parts_on(stage, true);
    for (const Part& part : parts) {
      if (part.nodes.size() == on_stage_[stage].size()) continue;
      consider_move(part, stages_[tree_.nodes[part.nodes.front()].parent], best);
      for (const int target : targets) consider_move(part, target, best);
    }
    if (best.gain <= kLeastGain) best = best_swap(stage, targets);
    if (best.gain <= kLeastGain) return false;
    move(best.part, best.target);
    if (!best.other.nodes.empty()) move(best.other, stage);
    return true;
  }

  // What may leave a stage: single nodes, and nodes with what is below them.
  std::vector<Part> parts_on(int stage, bool callers_alone) const {
    std::vector<Part> parts;
    for (const int node : on_stage_[stage]) {
      if (!may_move(node)) continue;
      parts.push_back(part_of(node));
      if (callers_alone && parts.back().nodes.size() > 1) parts.push_back({{node}, nodes_[node]});
    }
    return parts;
  }

  void consider_move(const Part& part, int target, Change& best) {
    if (target == stages_[part.nodes.front()]) return;
    const double gain = gain_of_move(part, target);
    if (gain > best.gain) best = {gain, part, target, {}};
  }

  Change best_swap(int stage, const std::vector<int>& targets) {
    Change best;
    const std::vector<Part> parts = parts_on(stage, false);
    for (const int target : targets) {
      for (const Part& other : parts_on(target, false)) {
        if (budget_ <= 0) return best;
        for (const Part& part : parts) consider_swap(part, other, best);
      }
    }
    return best;
  }

  bool calls(const Part& part, const Part& other) const {
    const int caller = tree_.nodes[other.nodes.front()].parent;
    return std::find(part.nodes.begin(), part.nodes.end(), caller) != part.nodes.end();
  }

  void consider_swap(const Part& part, const Part& other, Change& best) {
    if (price_ > 0 && (calls(part, other) || calls(other, part))) return;  // counts links wrongly
    const double gain = gain_of_swap(part, other);
    if (gain > best.gain) best = {gain, part, stages_[other.nodes.front()], other};
  }

  const CostTree& tree_;
  std::vector<int> stages_;
  const double price_;
  int budget_;
  std::vector<std::vector<int>> on_stage_;
  std::vector<bool> stuck_;    // by stage: nothing helped, and nothing changed there since
  std::vector<Load> load_;     // by stage
  std::vector<Load> inverse_;  // by stage: 1 over its part of the machine
  std::vector<Load> nodes_;    // by node: its part of the model
};

}  // namespace

std::vector<int> balanced(const CostTree& tree, const simulate::Machine& machine,
                          std::vector<int> stages, const BalanceOptions& options) {
  return Balancer(tree, machine, std::move(stages), options).run();
}

}  // namespace smp::partitioning
