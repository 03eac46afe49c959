// simulate/host_cores.cpp: one end is expected on each host, that of the stage which is done first.
#include "simulate/host_cores.h"

namespace smp::simulate {

HostCores::HostCores(StepState& step) : step_(step) {
  for (const auto& host : step.machine.oversubscribed) {
    for (const int stage : host.stages) step.stages[stage].host = static_cast<int>(hosts_.size());
    hosts_.push_back({SharedCores(host.cores)});
  }
}

void HostCores::begin(int stage, base::Nanoseconds work) {
  const int host = step_.stages[stage].host;
  if (host < 0) {
    step_.events.post(step_.now + work, Moment::kArrival, stage);
  } else {
    hosts_[host].cores.begin(stage, work, step_.now);
    expect_end(hosts_[host]);
  }
}

void HostCores::end(int stage) {
  if (step_.stages[stage].host < 0) return;
  Host& host = hosts_[step_.stages[stage].host];
  host.cores.end(step_.now);
  if (!host.cores.idle()) expect_end(host);
}

bool HostCores::is_void(const Event& event) const noexcept {
  const int host = step_.stages[event.stage].host;
  return host >= 0 && event.moment == Moment::kArrival && event.fiber < 0 &&
         event.number != hosts_[host].expected;
}

void HostCores::expect_end(Host& host) {
  host.expected =
      step_.events.post(host.cores.next_end(), Moment::kArrival, host.cores.next_stage());
}

}  // namespace smp::simulate
