// trial/operators/operator_watch.cpp: LibTorch's callbacks, which carry no state of ours.
#include "trial/operators/operator_watch.h"

#include <utility>

#include "base/check.h"

namespace smp::partitioning {
namespace {

// LibTorch's callbacks are plain functions of a thread.
thread_local OperatorListener* listening = nullptr;
thread_local int nodes_on_stack = 0;

bool is_node(const at::RecordFunction& op) {
  return op.scope() == at::RecordScope::BACKWARD_FUNCTION;
}

std::unique_ptr<at::ObserverContext> on_start(const at::RecordFunction& op) {
  if (is_node(op)) ++nodes_on_stack;
  const auto name = op.operator_name();
  if (!name) return nullptr;
  const at::DisableRecordFunctionGuard silent;
  listening->before(op, kind_of(*name));
  return nullptr;
}

void on_end(const at::RecordFunction& op, at::ObserverContext*) {
  if (is_node(op)) --nodes_on_stack;
  if (!op.operator_name()) return;
  const at::DisableRecordFunctionGuard silent;
  listening->after(op);
}

}  // namespace

OperatorWatch::OperatorWatch(OperatorListener& listener) {
  SMP_ASSERT(listening == nullptr);
  listening = &listener;
  nodes_on_stack = 0;
  handle_ = at::addThreadLocalCallback(
      at::RecordFunctionCallback(on_start, on_end)
          .needsInputs(true)
          .needsOutputs(true)
          .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION}));
}

bool OperatorWatch::inside_node() noexcept { return nodes_on_stack > 0; }

OperatorWatch::~OperatorWatch() {
  at::removeCallback(handle_);
  listening = nullptr;
}

OperatorMeter::OperatorMeter(std::vector<const base::Device*> devices)
    : devices_(std::move(devices)), times_(devices_.size()) {}

void OperatorMeter::before(const at::RecordFunction& op, const OperatorKind& kind) {
  const bool counted = levels_.empty() || levels_.back().accounting == Accounting::kParts;
  levels_.push_back({counted ? kind.accounting : Accounting::kFree, kind.convolves, {}, {}});
  auto& level = levels_.back();
  if (!counted || kind.accounting == Accounting::kParts) return;
  if (kind.accounting == Accounting::kOwn) level.work = kind.work(op.inputs());
  level.wishes = gradient_wishes(kind, op.inputs());
}

void OperatorMeter::after(const at::RecordFunction& op) {
  const Level level = std::move(levels_.back());
  levels_.pop_back();
  const bool counts = level.accounting == Accounting::kOwn || !level.wishes.wishes.empty();
  if (counts) add(level, sizes_of(op, level.convolves));
}

OutputSizes OperatorMeter::sizes_of(const at::RecordFunction& op, bool convolves) {
  OutputSizes sizes;
  bool first = true;
  for (const auto& output : op.outputs()) {
    each_tensor(output, [&](const at::Tensor& tensor) {
      sizes.elements += static_cast<double>(tensor.numel());
      sizes.bytes += bytes_of(tensor);
      sizes.wants_gradient |= tensor.requires_grad();
      if (std::exchange(first, false)) {
        sizes.precision = precision_of(tensor.scalar_type(), convolves);
      }
    });
  }
  return sizes;
}

void OperatorMeter::add(const Level& level, const OutputSizes& outputs) {
  const Kernel forward = forward_kernel(level.work, outputs);
  if (level.accounting == Accounting::kOwn) {
    flops_ += forward.flops;
    for (std::size_t d = 0; d < devices_.size(); ++d) {
      times_[d].forward += seconds_on(*devices_[d], forward);
    }
  }
  each_backward_kernel(level.wishes, forward, outputs, [this](const Kernel& kernel) {
    for (std::size_t d = 0; d < devices_.size(); ++d) {
      const double seconds = seconds_on(*devices_[d], kernel);
      times_[d].backward += seconds;
      if (kernel.for_weights) times_[d].weights += seconds;
    }
  });
}

}  // namespace smp::partitioning
