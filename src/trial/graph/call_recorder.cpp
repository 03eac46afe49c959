// trial/graph/call_recorder.cpp: a stack of running calls.
#include "trial/graph/call_recorder.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace smp::partitioning {

namespace {

using simulate::IntervalTimes;

void add(Reading& sum, const Reading& now, const Reading& before) {
  for (std::size_t d = 0; d < sum.size(); ++d) {
    sum[d].forward += now[d].forward - before[d].forward;
    sum[d].backward += now[d].backward - before[d].backward;
    sum[d].weights += now[d].weights - before[d].weights;
  }
}

}  // namespace

CallRecorder::CallRecorder(std::vector<const ModuleTree*> trees, Reading now)
    : trees_(std::move(trees)),
      traces_(trees_.size()),
      times_(trees_.size()),
      body_pending_(trees_.size(), Reading(now.size())),
      body_products_(trees_.size()),
      last_(std::move(now)) {
  for (std::size_t m = 0; m < trees_.size(); ++m) add_intervals(static_cast<int>(m));
}

void CallRecorder::advance(const Reading& now) {
  if (frames_.empty()) {
    for (Reading& pending : body_pending_) add(pending, now, last_);
  } else {
    add(frames_.back().pending, now, last_);
  }
  last_ = now;
}

/// A call of `model` from within another model counts as one of the body.
Reading& CallRecorder::pending(int model) {
  return current().model == model ? frames_.back().pending : body_pending_[model];
}

CallRecorder::Products& CallRecorder::products(int model) {
  return current().model == model ? frames_.back().products : body_products_[model];
}

void CallRecorder::note_product(double seconds, std::int64_t bytes) {
  const auto add = [&](Products& products) {
    products.seconds += seconds;
    products.bytes += bytes;
  };
  if (!frames_.empty()) return add(frames_.back().products);
  for (auto& products : body_products_) add(products);
}

void CallRecorder::add_intervals(int model) {
  times_[model].resize(traces_[model].num_intervals(), Reading(last_.size()));
}

void CallRecorder::settle(int model, const simulate::IntervalId& id, Reading& pending,
                          Products& products) {
  // Where all of a backward is for weights, sums of its parts differ by their rounding.
  for (auto& times : pending) times.weights = std::min(times.weights, times.backward);
  auto& trace = traces_[model];
  auto& own = id.call < 0 ? trace.body_after
              : id.before ? trace.calls[id.call].before
                          : trace.calls[id.call].after;
  own.seconds = pending.front().forward;
  own.backward_seconds = pending.front().backward;
  own.weight_seconds = pending.front().weights;
  own.product_seconds = products.seconds;
  own.product_bytes = products.bytes;
  products = {};
  times_[model][simulate::Trace::index_of(id)] = std::exchange(pending, Reading(pending.size()));
}

std::vector<IntervalTimes> CallRecorder::times_on(int model, std::size_t device) const {
  std::vector<IntervalTimes> times;
  for (const Reading& reading : times_[model]) times.push_back(reading.at(device));
  return times;
}

void CallRecorder::begin(int model, int module, std::int64_t input_bytes, const Reading& now) {
  advance(now);
  simulate::TracedCall call;
  call.module = module;
  call.caller = current().model == model ? current().number : -1;
  call.input_bytes = input_bytes;
  call.sequential = trees_[model]->nodes[module].sequential;
  auto& calls = traces_[model].calls;
  const int number = static_cast<int>(calls.size());
  calls.push_back(call);
  add_intervals(model);
  settle(model, {number, true}, pending(model), products(model));
  frames_.push_back({{model, number}, Reading(now.size())});
}

void CallRecorder::end(std::int64_t output_bytes, const Reading& now) {
  SMP_ASSERT(!frames_.empty());
  advance(now);
  const Call call = frames_.back().call;
  settle(call.model, {call.number, false}, frames_.back().pending, frames_.back().products);
  at(call).output_bytes = output_bytes;
  frames_.pop_back();
}

/// If the body calls backward several times, only the first loss is noted: it begins the backward.
void CallRecorder::note_loss(const Call& call) {
  auto& own = traces_[call.model].loss_call;
  if (own < 0) own = call.number;
}

void CallRecorder::finish(const Reading& now) {
  SMP_ASSERT(frames_.empty());
  advance(now);
  for (std::size_t m = 0; m < traces_.size(); ++m) {
    settle(static_cast<int>(m), {-1, false}, body_pending_[m], body_products_[m]);
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
