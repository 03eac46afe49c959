// server/step/server_core.cpp: how the parts are put together.
#include "server/step/server_core.h"

#include <algorithm>
#include <utility>

#include "base/random.h"

namespace smp::server {

ServerCore::ServerCore(d2d::Channel& channel, std::vector<GlobalRank> stages,
                       const ServerOptions& with, WorkerPool::Run run)
    : options(with),
      port(channel, std::move(stages)),
      scopes(port.name(), clock),
      foreign(port.name()),
      copies(port.name(), foreign),
      accumulator(
          parameters, [this](const at::Tensor& parameter) { foreign.refuse_gradient(parameter); },
          [this](int microbatch, const at::Tensor& leaf) {
            return random_key_of_hooks(microbatch, leaf);
          },
          options.fp32_grad_accumulation),
      turns(fiber::Scheduler::install()),
      workers(with.fiber_stack_bytes, std::move(run), [this] {
        if (server.waits_for_workers) server.wake.signal();
      }) {
  scopes.own_passes = &accumulator.own_passes();
}

void ServerCore::end_microbatch(int microbatch) {
  accumulator.mark_microbatch_done(microbatch);
  step->admission.ended_here(microbatch);
}

std::uint64_t ServerCore::random_key(int microbatch) const noexcept {
  const auto number = static_cast<std::uint64_t>(step->task.earlier_steps + step->number);
  const auto key = base::mix_key(options.seed, number);
  return base::mix_key(key, static_cast<std::uint64_t>(step->task.first_microbatch + microbatch));
}

/// Uses the number of the parameter's flag, which is the same on all ranks, because a rank numbers
/// only its own parameters. Leaves that the program has made have no lasting number.
std::uint64_t ServerCore::random_key_of_hooks(int microbatch, const at::Tensor& leaf) {
  const auto number = scopes.settings.flags().number_of(leaf);
  const auto other = std::min(parameters.of(leaf), parameters.placed());
  return base::mix_key(random_key(microbatch),
                       number ? *number : scopes.settings.flags().size() + other);
}

}  // namespace smp::server
