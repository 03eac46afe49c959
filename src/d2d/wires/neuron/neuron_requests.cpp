// d2d/wires/neuron/neuron_requests.cpp: see the header.
#include "d2d/wires/neuron/neuron_requests.h"

#include "d2d/wires/neuron/neuron_status.h"

namespace smp::d2d {

NeuronRequests::NeuronRequests(NeuronRuntime& runtime, RelativeCore core)
    : runtime_(runtime), core_(core) {
  if (library().interface != NeuronInterface::kErrorTracker) return;
  runtime_.require_usable("nrta_error_tracker_create");
  runtime_.require(library().tracked.create(static_cast<std::uint32_t>(core.value()), &tracker_),
                   "preparing copies", "nrta_error_tracker_create", core);
}

NeuronRequests::~NeuronRequests() {
  if (tracker_ != nullptr && !runtime_.is_closed()) library().tracked.destroy(tracker_);
}

/// Reads the flag: what the status says of a request that is under way is not agreed on.
bool NeuronRequests::is_done(const NeuronRequest& request) const {
  bool done = false;
  const int status = library().is_completed(request.sequence, &done);
  if (!done && status != neuron_status::kSuccess) {
    runtime_.fail(status, "asking for a request", "nrta_is_completed", core_);
  }
  return done;
}

int NeuronRequests::result_of(const NeuronRequest& request) const {
  if (library().interface == NeuronInterface::kResult) return request.result;
  const NeuronLibrary::Error* errors = nullptr;
  std::size_t count = 0;
  runtime_.require(library().tracked.get_list(tracker_, &errors, &count),
                   "asking how a request went", "nrta_error_tracker_get_list", core_);
  for (std::size_t i = 0; i < count; ++i) {
    if (errors[i].sequence == request.sequence) return static_cast<int>(errors[i].status);
  }
  return neuron_status::kSuccess;
}

}  // namespace smp::d2d
