// partition/operator_watch.cpp: LibTorch's callbacks, which carry no state of ours.
#include "partition/operator_watch.h"

#include "base/check.h"

namespace smp::partitioning {
namespace {

// LibTorch's callbacks are plain functions of a thread.
thread_local OperatorListener* listening = nullptr;

std::unique_ptr<at::ObserverContext> on_start(const at::RecordFunction& op) {
  const auto name = op.operator_name();
  if (!name) return nullptr;
  const at::DisableRecordFunctionGuard silent;
  listening->before(op, kind_of(*name));
  return nullptr;
}

void on_end(const at::RecordFunction& op, at::ObserverContext*) {
  if (!op.operator_name()) return;
  const at::DisableRecordFunctionGuard silent;
  listening->after(op);
}

}  // namespace

OperatorWatch::OperatorWatch(OperatorListener& listener) {
  SMP_ASSERT(listening == nullptr);
  listening = &listener;
  handle_ = at::addThreadLocalCallback(at::RecordFunctionCallback(on_start, on_end)
                                           .needsInputs(true)
                                           .needsOutputs(true)
                                           .scopes({at::RecordScope::FUNCTION}));
}

OperatorWatch::~OperatorWatch() {
  at::removeCallback(handle_);
  listening = nullptr;
}

void OperatorMeter::before(const at::RecordFunction& op, const OperatorKind& kind) {
  const bool counted = levels_.empty() || levels_.back().accounting == Accounting::kParts;
  levels_.push_back({counted ? kind.accounting : Accounting::kFree, {}});
  auto& level = levels_.back();
  if (level.accounting == Accounting::kOwn) level.work = kind.work(op.inputs());
}

void OperatorMeter::after(const at::RecordFunction& op) {
  const Level level = levels_.back();
  levels_.pop_back();
  if (level.accounting != Accounting::kOwn) return;
  double elements = 0;
  double bytes = 0;
  for (const auto& output : op.outputs()) {
    each_tensor(output, [&](const at::Tensor& tensor) {
      elements += static_cast<double>(tensor.numel());
      bytes += bytes_of(tensor);
    });
  }
  flops_ += level.work.flops + level.work.flops_per_element * elements;
  seconds_ += seconds_of(level.work, elements, bytes);
}

}  // namespace smp::partitioning
