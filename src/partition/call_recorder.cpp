// partition/call_recorder.cpp: a stack of running calls.
#include "partition/call_recorder.h"

#include <utility>

#include "base/check.h"

namespace smp::partitioning {

CallRecorder::CallRecorder(std::vector<const ModuleTree*> trees, double now)
    : trees_(std::move(trees)),
      traces_(trees_.size()),
      body_pending_(trees_.size(), 0.0),
      last_(now) {}

void CallRecorder::advance(double now) {
  const double passed = now - std::exchange(last_, now);
  if (!frames_.empty()) {
    frames_.back().pending += passed;
    return;
  }
  for (double& pending : body_pending_) pending += passed;
}

/// A call from within another model counts as one of the body.
double& CallRecorder::pending(int model) {
  return current().model == model ? frames_.back().pending : body_pending_[model];
}

void CallRecorder::begin(int model, int module, std::int64_t input_bytes, double now) {
  advance(now);
  simulate::TracedCall call;
  call.module = module;
  call.caller = current().model == model ? current().number : -1;
  call.before.seconds = std::exchange(pending(model), 0.0);
  call.input_bytes = input_bytes;
  call.sequential = trees_[model]->nodes[module].sequential;
  auto& calls = traces_[model].calls;
  calls.push_back(call);
  frames_.push_back({{model, static_cast<int>(calls.size()) - 1}});
}

void CallRecorder::end(std::int64_t output_bytes, double now) {
  SMP_ASSERT(!frames_.empty());
  advance(now);
  simulate::TracedCall& call = at(frames_.back().call);
  call.after.seconds = frames_.back().pending;
  call.output_bytes = output_bytes;
  frames_.pop_back();
}

/// Of several losses the first begins the backward.
void CallRecorder::note_loss(const Call& call) {
  auto& own = traces_[call.model].loss_call;
  if (own < 0) own = call.number;
}

void CallRecorder::finish(double now) {
  SMP_ASSERT(frames_.empty());
  advance(now);
  for (std::size_t i = 0; i < traces_.size(); ++i) {
    traces_[i].body_after.seconds = body_pending_[i];
  }
}

CallRecorder::Call CallRecorder::current() const {
  return frames_.empty() ? Call{} : frames_.back().call;
}

int CallRecorder::current_module() const {
  const Call call = current();
  return call.model < 0 ? 0 : traces_[call.model].calls[call.number].module;
}

}  // namespace smp::partitioning
