// trial/tracer/traced_run.cpp: readings, and whose tensor is whose.
#include "trial/tracer/traced_run.h"

#include <utility>

namespace smp::partitioning {

TracedRun::TracedRun(std::vector<const ModuleTree*> trees,
                     const std::vector<const base::Device*>& devices, Watching watching,
                     base::WorkClock& clock, ParameterReads& reads)
    : watching_(watching),
      clock_(clock),
      reads_(reads),
      meter_(devices),
      calls_(std::move(trees), now()) {}

Reading TracedRun::now() const {
  if (watching_ == Watching::kClock) {
    return {{static_cast<double>(clock_.now()) / base::kSecond, 0, 0}};
  }
  auto reading = meter_.times();
  reading.push_back(waited_);
  return reading;
}

void TracedRun::note_wait(double forward_seconds, double backward_seconds) {
  const Bookkeeping own(*this);
  waited_.forward += forward_seconds;
  waited_.backward += backward_seconds;
}

void TracedRun::note_backward(const std::vector<at::Tensor>& roots) {
  const Bookkeeping own(*this);
  live_.keep_graph(roots);
  if (roots.size() != 1) return;
  const auto found = returned_by_.find(roots[0].unsafeGetTensorImpl());
  if (found != returned_by_.end()) calls_.note_loss(found->second.call);
}

void TracedRun::note_passed(const std::vector<at::Tensor>& tensors) {
  for (const auto& tensor : tensors) {
    if (!tensor.defined()) continue;
    reads_.note(calls_.current().model, calls_.current_module(), tensor);
  }
}

void TracedRun::note_handed(const std::vector<at::Tensor>& tensors, bool returned) {
  const int model = calls_.current().model;
  const int module = calls_.current_module();
  for (const auto& tensor : tensors) {
    if (!tensor.defined()) continue;
    if (returned) {
      reads_.note_returned(model, module, tensor);
    } else {
      reads_.note_handed(model, module, tensor);
    }
  }
}

void TracedRun::note_result(const std::vector<at::Tensor>& tensors) {
  for (const auto& tensor : tensors) {
    if (!tensor.defined()) continue;
    const auto& object = tensor.getIntrusivePtr();
    returned_by_.try_emplace(object.get(), Returned{calls_.current(), Weak(object)});
  }
}

}  // namespace smp::partitioning
