// deferred/recording.cpp: operands, a run on shapes, and results.
#include "deferred/recording.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>

#include "base/check.h"
#include "deferred/meta_kernels.h"
#include "deferred/operator_hook.h"
#include "deferred/recordable.h"

namespace smp::deferred {
namespace {

bool fills_its_storage(const at::Tensor& tensor) {
  return tensor.storage_offset() == 0 && tensor.is_non_overlapping_and_dense() &&
         tensor.nbytes() == tensor.storage().nbytes();
}

/// Returns the number of elements from the first to the last of `tensor` in memory.
std::int64_t span_of(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return 0;
  std::int64_t span = 1;
  for (std::int64_t d = 0; d < tensor.dim(); ++d) span += (tensor.size(d) - 1) * tensor.stride(d);
  return span;
}

bool lies_in_its_storage(const at::Tensor& tensor) {
  const auto span = span_of(tensor);
  if (span == 0) return true;
  const auto end = static_cast<std::size_t>(tensor.storage_offset() + span) * tensor.itemsize();
  return tensor.storage_offset() >= 0 && end <= tensor.storage().nbytes();
}

/// Returns a copy with the same strides, on which kernels depend.
at::Tensor copy_of(const at::Tensor& tensor) {
  const at::NoGradGuard no_grad;
  if (tensor.is_non_overlapping_and_dense()) return tensor.detach().clone();
  auto geometry = Geometry::of(tensor);
  geometry.offset = 0;
  const Geometry whole{{span_of(tensor)}, {1}, tensor.storage_offset(), tensor.scalar_type()};
  return geometry.on(whole.on(tensor.storage()).clone().storage());
}

/// Returns a copy, since the caller may change his tensor afterwards.
at::Tensor constant(const c10::OperatorHandle& op, const at::Tensor& tensor) {
  SMP_REQUIRE(!tensor.is_meta(), no_values_ever(op.schema().name()));
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) return tensor;
  return copy_of(tensor);
}

}  // namespace

Recording::Recording(const c10::OperatorHandle& op, torch::jit::Stack& stack)
    : stack_(stack), first_(first_argument(op, stack)) {
  operation_ = std::make_shared<Operation>(op);
  operation_->default_type = c10::get_default_dtype_as_scalartype();
  operation_->arguments.assign(stack.begin() + static_cast<std::ptrdiff_t>(first_), stack.end());
  take_operands();
  take_device();
  drop_what_is_ignored();
  for (const auto& operand : operation_->operands) {
    const auto& maker = operand.content->maker;
    if (maker) operation_->depth = std::max(operation_->depth, maker->depth + 1);
  }
}

bool Recording::run() {
  map_arguments(operation_->op, stack_,
                [](const at::Tensor& tensor, bool) { return shape_of(tensor); });
  const ReadablePointers readable(operation_->op, stack_);
  if (writes_overlap()) return false;
  operation_->op.callBoxed(&stack_);
  bool inside = true;
  map_results(stack_, first_, [&](const at::Tensor& tensor, bool) {
    inside = inside && (!tensor.is_meta() || lies_in_its_storage(tensor));
    return tensor;
  });
  return inside;
}

/// True if an element that is written is another operand's as well, or written twice.
bool Recording::writes_overlap() const {
  for (std::size_t i = 0; i < operands_.size(); ++i) {
    if (!operation_->operands[i].written) continue;
    if (at::has_internal_overlap(operands_[i]) == at::MemOverlap::Yes) return true;
    for (const auto& other : operands_) {
      if (at::get_overlap_status(operands_[i], other) == at::MemOverlapStatus::Partial) return true;
    }
  }
  return false;
}

bool Recording::publish(const std::shared_ptr<Construction>& construction) {
  for (std::size_t i = 0; i < operands_.size(); ++i) {
    if (!operation_->operands[i].written) continue;
    const auto bytes = operands_[i].storage().nbytes();
    operation_->results.push_back({true, i, {}, bytes});
    delayed_storage(operands_[i])->content = last_result();
  }
  std::size_t index = 0;
  map_results(stack_, first_, [&](const at::Tensor& tensor, bool) {
    if (tensor.is_meta()) note(tensor, index, construction);
    ++index;
    return tensor;
  });
  return !operation_->results.empty();
}

void Recording::take_operands() {
  const bool graph = at::GradMode::is_enabled();
  auto& arguments = operation_->arguments;
  const auto unsaid = written_unsaid(operation_->op, arguments);
  const auto is_unsaid = [&](const at::Tensor& tensor) {
    return std::any_of(unsaid.begin(), unsaid.end(),
                       [&](const at::Tensor& other) { return other.is_same(tensor); });
  };
  map_arguments(operation_->op, arguments, [&](const at::Tensor& tensor, bool written) {
    const auto* storage = delayed_storage(tensor);
    if (storage == nullptr) return constant(operation_->op, tensor);
    written = written || is_unsaid(tensor);
    operation_->operands.push_back(
        {storage->content, Geometry::of(tensor), written, graph && tensor.requires_grad()});
    operands_.push_back(tensor);
    if (written && !filled_.defined()) filled_ = tensor;
    return at::empty({0}, tensor.options().device(at::kMeta).requires_grad(false));
  });
}

void Recording::take_device() {
  const auto index = operation_->op.schema().argumentIndexWithName("device");
  if (!index) return;
  auto& replayed = operation_->arguments[static_cast<std::size_t>(*index)];
  auto& now = stack_[first_ + static_cast<std::size_t>(*index)];
  if (replayed.isDevice() && replayed.toDevice().is_meta()) replayed = at::Device(at::kCPU);
  if (now.isDevice() || operation_->operands.empty()) now = at::Device(at::kMeta);
}

/// Cuts off what came before, where no value of it is left or asked for.
void Recording::drop_what_is_ignored() {
  if (operands_.empty() || !ignores_first_values(operation_->op)) return;
  auto& first = operation_->operands[0];
  if (first.written && !fills_its_storage(operands_[0])) return;
  first.content = std::make_shared<Content>(Content{operands_[0].storage().nbytes(), nullptr, 0});
}

ContentPtr Recording::last_result() const {
  const auto index = operation_->results.size() - 1;
  return std::make_shared<Content>(Content{operation_->results.back().bytes, operation_, index});
}

void Recording::note(const at::Tensor& tensor, std::size_t index,
                     const std::shared_ptr<Construction>& construction) {
  ContentPtr content;
  if (!is_delayed(tensor)) {
    operation_->results.push_back({false, index, Geometry::of(tensor), tensor.storage().nbytes()});
    content = last_result();
    if (!filled_.defined()) filled_ = tensor;
  }
  make_delayed(tensor, content, construction);
}

}  // namespace smp::deferred
