// simulate/host_cores.h: when a stage that computes is done: at once after its work on a core of
// its own, later where stages share the cores of an oversubscribed host.
#pragma once

#include <cstdint>
#include <vector>

#include "simulate/shared_cores.h"
#include "simulate/step_state.h"

namespace smp::simulate {

/// Posts the ends of computations. An end that other stages on the same cores put off or bring
/// forward stays in the queue and is void.
class HostCores {
 public:
  /// @param step  is referred to; its stages are told which host they are on
  explicit HostCores(StepState& step);

  /// Begins a computation on `stage` that takes `work` on a core of its own.
  void begin(int stage, base::Nanoseconds work);
  /// Ends the computation of `stage`, at an event that is not void.
  void end(int stage);
  bool is_void(const Event& event) const noexcept;

 private:
  struct Host {
    SharedCores cores;
    std::uint64_t expected = 0;  // event at which the next stage is done; earlier ones are void
  };
  void expect_end(Host& host);

  StepState& step_;
  std::vector<Host> hosts_;
};

}  // namespace smp::simulate
