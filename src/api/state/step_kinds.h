// api/state/step_kinds.h: kinds of steps of which it is known what modules keep in them.
#pragma once

#include <cstdint>
#include <map>
#include <typeindex>
#include <typeinfo>
#include <unordered_set>
#include <utility>

namespace smp {

class Rank;

/// The kinds of steps that have run: training and evaluation, the generator's step and the
/// discriminator's. What a trial run saw of one kind says little of another, so the first step of a
/// kind that nobody has seen runs one microbatch at a time, where everything is as in one process
/// and shows what modules keep. Threads: the rank's.
class StepKinds {
 public:
  using Kind = std::uint64_t;
  /// @param body  of the function that runs one microbatch, made by smp::Step<Body>
  /// @param grad  whether the step records gradients
  static Kind kind_of(Rank& rank, const std::type_info& body, bool grad);

  /// Forgets all kinds, because there are new models.
  void forget() noexcept { seen_.clear(); }
  void add(Kind kind) { seen_.insert(kind); }
  bool has(Kind kind) const { return seen_.contains(kind); }

 private:
  std::unordered_set<Kind> seen_;
};

/// The steps that were looked at in advance for models that they use, since some wait for one that
/// does. What a body does may depend on variables that it captured, so the first steps of each kind
/// after a model was made are looked at; then no model waits any longer. Threads: the rank's; the
/// same on all ranks of a pipeline, and those of kinds that all replicas begin on all ranks.
class StepLooks {
 public:
  static constexpr int kMost = 8;  ///< steps of a kind

  /// Begins again, because there is a new model.
  void forget() noexcept { taken_.clear(); }
  bool any() const noexcept { return !taken_.empty(); }
  /// True if a step of `body` is to be looked at, which this counts.
  bool take(const std::type_info& body, bool grad) {
    return ++taken_[{std::type_index(body), grad}] <= kMost;
  }

 private:
  std::map<std::pair<std::type_index, bool>, int> taken_;
};

}  // namespace smp
