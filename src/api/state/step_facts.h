// api/state/step_facts.h: what a step, the optimizers and the calls between steps ought to have in
// common on all ranks, gathered at the step's start and compared at its end.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <typeinfo>
#include <unordered_map>
#include <vector>

namespace torch::optim {
class Optimizer;
}

namespace smp {

/// Collects what the user did on this rank since the last step. Threads: the rank's.
class StepFacts {
 public:
  void add_optimizer(std::weak_ptr<torch::optim::Optimizer> optimizer);
  void note_zero_grad() noexcept { zeroed_ = true; }
  void note_optimizer_step() noexcept { ++optimizer_steps_; }
  /// Notes that gradients were clipped.
  /// @param how  "to norm 1 of order 2"; the same on all stages
  void note_clipping(const std::string& how);

  /// Returns all facts, as bytes. If the step learns, counting begins anew; a step that does not
  /// may be run by some replicas alone, between two that all of them run. It takes some
  /// microseconds.
  /// @param body       type of the function that runs one microbatch, made by smp::Step<Body>
  /// @param gradients  what becomes of gradients where there are replicas
  std::string take(const std::type_info& body, int microbatches, bool learns = true,
                   const std::string& gradients = {});

  /// Returns in words what is different between two ranks' take(); empty if nothing is.
  static std::string explain(int rank, const std::string& facts, int other,
                             const std::string& others);

 private:
  const std::string& name_of(const std::type_info& body);
  std::string text_of_clipping() const;

  std::vector<std::weak_ptr<torch::optim::Optimizer>> optimizers_;
  std::unordered_map<const std::type_info*, std::string> bodies_;
  bool zeroed_ = false;
  int optimizer_steps_ = 0;
  /// The clippings in the order of calls; of many that differ, the last ones are only a hash.
  struct Clipping {
    std::string how;
    int times;
  };
  std::vector<Clipping> clipped_;
  std::uint64_t further_ = 0;  // hash of those beyond
};

}  // namespace smp
