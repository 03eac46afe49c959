// server/step/weight_parts.h: microbatches whose backward has a second part to come on this rank
// (Qi et al., Zero Bubble Pipeline Parallelism, 2023).
#pragma once

#include <vector>

namespace smp::server {

/// Counts the second parts of one step. A microbatch that has ended on pp_rank 0 has ended here
/// only when its second parts have, since gradients come from them. Threads: the rank's; safe in a
/// poll.
class WeightParts {
 public:
  explicit WeightParts(int microbatches) : microbatches_(static_cast<std::size_t>(microbatches)) {}

  /// Notes that one more second part of `microbatch` is to come; end() notes that one has ended.
  void begin(int microbatch) { ++at(microbatch).left; }
  /// Notes that a second part has ended. @return true if the microbatch has ended now
  [[nodiscard]] bool end(int microbatch) {
    auto& own = at(microbatch);
    return --own.left == 0 && own.done_elsewhere;
  }
  /// Notes that `microbatch` is done on pp_rank 0. @return true if it has ended here now; else
  /// end() will say so
  [[nodiscard]] bool done_elsewhere(int microbatch) {
    auto& own = at(microbatch);
    own.done_elsewhere = true;
    return own.left == 0;
  }

 private:
  struct Microbatch {
    int left = 0;
    bool done_elsewhere = false;
  };
  Microbatch& at(int microbatch) { return microbatches_.at(static_cast<std::size_t>(microbatch)); }

  std::vector<Microbatch> microbatches_;
};

}  // namespace smp::server
