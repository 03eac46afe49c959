// deferred/recorder.cpp: to write down, or to compute.
#include "deferred/recorder.h"

#include <ATen/ops/empty_strided.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <utility>

#include "base/check.h"
#include "base/random.h"
#include "deferred/recordable.h"
#include "deferred/recording.h"

namespace smp::deferred {
namespace {

using c10::OperatorHandle;
using torch::jit::Stack;

/// Tells which kinds of tensors are among the arguments of an operator.
struct Arguments {
  bool delayed = false;
  bool real = false;  // numbers do not count
  bool writes_delayed = false;
  bool writes_real = false;
  std::shared_ptr<Construction> construction;
};

Arguments look_at(const OperatorHandle& op, Stack& stack) {
  Arguments seen;
  map_arguments(op, stack, [&](const at::Tensor& tensor, bool written) {
    if (const auto* storage = delayed_storage(tensor)) {
      seen.delayed = true;
      seen.writes_delayed = seen.writes_delayed || written;
      if (!seen.construction) seen.construction = storage->construction;
    } else {
      seen.real = seen.real || tensor.dim() > 0;
      seen.writes_real = seen.writes_real || written;
    }
    return tensor;
  });
  // Those that only visit_arguments() finds, in dictionaries and the like.
  visit_arguments(op, stack, [&](const at::Tensor& tensor) {
    const auto* storage = delayed_storage(tensor);
    if (storage == nullptr) return;
    seen.delayed = true;
    if (!seen.construction) seen.construction = storage->construction;
  });
  return seen;
}

/// Gives tensors of a placed model that were not registered, and views of those that were, their
/// values, in place.
void fill_placed(const OperatorHandle& op, const Stack& stack) {
  Materialiser materialiser;
  visit_arguments(op, stack, [&](const at::Tensor& tensor) {
    const auto* storage = delayed_storage(tensor);
    if (storage != nullptr && (storage->values || storage->construction->is_placed())) {
      materialiser.fill(tensor);
    }
  });
}

bool names_no_device(const OperatorHandle& op, Stack& stack) {
  const auto* device = device_argument(op, stack);
  return device->isNone() || device->toDevice().is_meta();
}

/// Delayed tensors say that they are on the meta device; who asks for theirs means where the values
/// will be.
void stay_off_meta(const OperatorHandle& op, Stack& stack) {
  auto* device = device_argument(op, stack);
  if (device != nullptr && device->isDevice() && device->toDevice().is_meta()) {
    *device = at::Device(at::kCPU);
  }
}

/// One at a time, since recipes are shared by all views of a storage.
std::unique_lock<std::mutex> lock_recipes() {
  static std::mutex mutex;
  return std::unique_lock(mutex);
}

/// True if `op` needs no values of delayed tensors, or gives none.
bool needs_shapes_only(const OperatorHandle& op, const Stack& stack) {
  if (asks(op) && is_recordable(op, stack)) return true;
  const auto& first = stack[first_argument(op, stack)];
  return asks_for_shapes_of_others(op) &&
         (asks(op) || (first.isTensor() && !is_delayed(first.toTensor())));
}

/// Views a delayed tensor in the shape of another by the operator that takes a shape, which is put
/// off. Returns false, with the stack as it was, if `op` does something else.
bool view_by_shape(const OperatorHandle& op, Stack& stack) {
  const auto& name = op.schema().name();
  const bool view = name == "aten::view_as", reshape = name == "aten::reshape_as";
  if (!view && !reshape && name != "aten::expand_as") return false;
  const auto first = first_argument(op, stack);
  const auto self = stack[first].toTensor();
  if (!is_delayed(self)) return false;
  const auto sizes = stack[first + 1].toTensor().sizes().vec();
  torch::jit::drop(stack, 2);
  stack.emplace_back(view ? self.view(sizes) : reshape ? self.reshape(sizes) : self.expand(sizes));
  return true;
}

/// Puts tensors of the same shape and type in the place of delayed ones, but for the first if it
/// is to be kept.
void stand_in(const OperatorHandle& op, Stack& stack, bool keeps_first) {
  bool first = keeps_first;
  map_arguments(op, stack, [&](const at::Tensor& tensor, bool) {
    if (std::exchange(first, false) || !is_delayed(tensor)) return tensor;
    return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(at::kCPU));
  });
}

/// True if an operator that was put off has noted `tensor` for a backward pass.
bool belongs_to_graph(const at::Tensor& tensor) {
  if (!tensor.requires_grad()) return false;
  return !tensor.is_leaf() || torch::autograd::impl::try_get_grad_accumulator(tensor);
}

/// Refuses tensors without values that are not delayed ones.
void require_values(const OperatorHandle& op, const Stack& stack) {
  visit_arguments(op, stack, [&](const at::Tensor& tensor) {
    SMP_REQUIRE(!tensor.is_meta() || is_delayed(tensor), no_values_ever(op.schema().name()));
  });
}

void give_values_to_storages(Stack& stack, std::size_t first, Materialiser& materialiser) {
  for (auto i = first; i < stack.size(); ++i) {
    if (stack[i].isStorage()) stack[i] = materialiser.values_of(stack[i].toStorage());
  }
}

}  // namespace

void Recorder::run(const OperatorHandle& op, Stack& stack) {
  auto lock = lock_recipes();
  refuse_backward(op);
  fill_placed(op, stack);
  const auto arguments = look_at(op, stack);
  if (arguments.delayed) return run_delayed(op, stack, arguments.writes_real, std::move(lock));
  if (is_factory(op, stack) && names_no_device(op, stack) && record(op, stack)) return;
  compute(op, stack, std::move(lock));
}

void Recorder::run_outside(const OperatorHandle& op, Stack& stack) {
  if (view_by_shape(op, stack)) return;
  auto lock = lock_recipes();
  fill_placed(op, stack);
  const auto arguments = look_at(op, stack);
  if (!arguments.delayed) {
    lock.unlock();
    return op.callBoxed(&stack);
  }
  if (!arguments.construction->open) {
    SMP_REQUIRE(arguments.writes_delayed || !arguments.real || needs_shapes_only(op, stack),
                no_values_yet(op.schema().name()));
  }
  Recorder(arguments.construction).run_delayed(op, stack, arguments.writes_real, std::move(lock));
}

void Recorder::close() {
  const auto lock = lock_recipes();
  construction_->open = false;
}

void Recorder::run_delayed(const OperatorHandle& op, Stack& stack, bool writes_real, Lock lock) {
  if (!writes_real && record(op, stack)) return;
  bool writes_delayed = false;
  map_arguments(op, stack, [&](const at::Tensor& tensor, bool written) {
    writes_delayed = writes_delayed || (written && is_delayed(tensor));
    return tensor;
  });
  SMP_REQUIRE(construction_->open || writes_delayed || needs_shapes_only(op, stack),
              no_values_yet(op.schema().name()));
  require_values(op, stack);
  compute(op, stack, std::move(lock));
}

/// Returns false, with the stack as it was, if `op` cannot be put off.
bool Recorder::record(const OperatorHandle& op, Stack& stack) {
  if (!is_recordable(op, stack)) return false;
  const auto given = stack;
  Recording recording(op, stack);
  bool runs = false;
  try {
    runs = recording.run();
  } catch (const c10::Error&) {
  }
  if (!runs) {  // with values it works, or says what is wrong
    stack = given;
    return false;
  }
  const bool made = recording.publish(construction_);
  if (made && draws_random(op)) give_randomness(recording);
  return true;
}

void Recorder::compute(const OperatorHandle& op, Stack& stack, Lock lock) {
  Materialiser materialiser;
  if (asks(op) && asks_for_shapes_of_others(op)) {
    stand_in(op, stack, /*keeps_first=*/false);
  } else if (asks(op) && is_of_libtorch(op)) {
    map_arguments(op, stack, [&](const at::Tensor& tensor, bool) {
      return is_delayed(tensor) ? materialiser.values_of(tensor) : tensor;
    });
  } else {
    if (asks_for_shapes_of_others(op)) stand_in(op, stack, /*keeps_first=*/true);
    visit_arguments(op, stack, [&](const at::Tensor& tensor) {
      if (!is_delayed(tensor)) return;
      if (belongs_to_graph(tensor)) construction_->torn = true;
      materialiser.fill(tensor);
    });
  }
  give_values_to_storages(stack, first_argument(op, stack), materialiser);
  stay_off_meta(op, stack);
  lock.unlock();  // it may start threads that are seen here
  op.callBoxed(&stack);
}

void Recorder::give_randomness(const Recording& recording) {
  auto& operation = *recording.operation();
  auto& random = operation.random.emplace();
  at::Generator own;
  for (const auto& value : operation.arguments) {
    if (value.isGenerator()) own = value.toGenerator();
  }
  if (construction_->by_path && !own.defined()) {
    random.key = base::mix_key(construction_->key, construction_->draws++);
    return;
  }
  auto& stream = construction_->stream;
  random.position = stream.position(own.defined() ? own : base::default_generator());
  random.count = construction_->counts.of(operation.op, recording.filled());
  if (random.count) return stream.skip(*random.count);
  RandomCursor cursor;
  Evaluation(cursor).run_for_its_draws(recording.operation());
  stream.follow(cursor.generator());
}

/// A graph of which some tensors have got values and others have not cannot be walked.
void Recorder::refuse_backward(const OperatorHandle& op) const {
  if (!construction_->torn || !torch::autograd::get_current_node()) return;
  throw UsageError(base::concat(
      op.schema().name(),
      " in a backward pass under smp::delay_param_initialization: an operator of its forward "
      "pass was computed at once, others were put off, and autograd cannot pass from one to the "
      "other. Build this module outside of that scope"));
}

void run_without_hook(const OperatorHandle& op, Stack& stack) { Recorder::run_outside(op, stack); }

}  // namespace smp::deferred
