// deferred/delayed_init.cpp: recording what constructors do.
#include "smp/delayed_init.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/random.h"
#include "deferred/deferral.h"
#include "deferred/delayed_tensors.h"
#include "deferred/meta_kernels.h"
#include "deferred/operator_hook.h"

namespace smp {
namespace deferred {
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
  return seen;
}

/// Gives tensors of a placed model that were not registered, and views of those that were, their
/// values, in place.
void fill_placed(const OperatorHandle& op, Stack& stack) {
  Materialiser materialiser;
  map_arguments(op, stack, [&](const at::Tensor& tensor, bool) {
    const auto* storage = delayed_storage(tensor);
    if (storage != nullptr && (storage->values || storage->construction->placed)) {
      materialiser.fill(tensor);
    }
    return tensor;
  });
}

bool makes_delayed(const OperatorHandle& op, Stack& stack) {
  if (!is_factory(op, stack)) return false;
  const auto* device = device_argument(op, stack);
  return device->isNone() || device->toDevice().is_meta();
}

/// True if nothing is left after `op` of the values that its first operand held.
bool overwrites(const OperatorHandle& op) {
  static constexpr std::array<std::string_view, 11> kNames{
      "aten::normal_",    "aten::uniform_",    "aten::zero_",     "aten::fill_",
      "aten::copy_",      "aten::random_",     "aten::cauchy_",   "aten::exponential_",
      "aten::bernoulli_", "aten::log_normal_", "aten::geometric_"};
  return std::find(kNames.begin(), kNames.end(), op.schema().name()) != kNames.end();
}

bool fills_its_storage(const at::Tensor& tensor) {
  return tensor.storage_offset() == 0 && tensor.is_non_overlapping_and_dense() &&
         tensor.nbytes() == tensor.storage().nbytes();
}

/// Turns one run of an operator into a step of the recipes.
class Recording {
 public:
  Recording(const OperatorHandle& op, Stack& stack)
      : stack_(stack), first_(first_argument(op, stack)) {
    operation_ = std::make_shared<Operation>(op);
    operation_->default_type = c10::get_default_dtype_as_scalartype();
    operation_->arguments.assign(stack.begin() + static_cast<std::ptrdiff_t>(first_), stack.end());
    take_operands();
    take_device();
    if (overwrites(op) && !operands_.empty() && operation_->operands[0].written &&
        fills_its_storage(operands_[0])) {
      operation_->operands[0].content =
          std::make_shared<Content>(Content{operands_[0].storage().nbytes(), nullptr, 0});
    }
    for (const auto& operand : operation_->operands) {
      const auto& maker = operand.content->maker;
      if (maker) operation_->depth = std::max(operation_->depth, maker->depth + 1);
    }
  }

  /// Runs the operator on shapes alone. @throws c10::NotImplementedError  they depend on values.
  void run() {
    map_arguments(operation_->op, stack_,
                  [](const at::Tensor& tensor, bool) { return shape_of(tensor); });
    const ReadablePointers readable(operation_->op, stack_);
    operation_->op.callBoxed(&stack_);
  }

  /// Hands the recipe to all tensors that were made or written. Returns false if there are none.
  bool publish(const std::shared_ptr<Construction>& construction) {
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

  const std::shared_ptr<Operation>& operation() const { return operation_; }
  /// The tensor that a random operator fills.
  const at::Tensor& filled() const { return filled_; }

 private:
  void take_operands() {
    auto& arguments = operation_->arguments;
    map_arguments(operation_->op, arguments, [&](const at::Tensor& tensor, bool written) {
      const auto* storage = delayed_storage(tensor);
      if (storage == nullptr) return constant(tensor);
      operation_->operands.push_back({storage->content, Geometry::of(tensor), written});
      operands_.push_back(tensor);
      if (written && !filled_.defined()) filled_ = tensor;
      return at::empty({0}, tensor.options().device(at::kMeta).requires_grad(false));
    });
  }

  /// Returns a copy, since the caller may change his tensor afterwards.
  at::Tensor constant(const at::Tensor& tensor) const {
    SMP_REQUIRE(!tensor.is_meta(), operation_->op.schema().name(),
                " under smp::delay_param_initialization got a meta tensor that was not made there; "
                "it will never have values");
    if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) return tensor;
    return tensor.detach().clone();
  }

  void take_device() {
    const auto index = operation_->op.schema().argumentIndexWithName("device");
    if (!index) return;
    auto& replayed = operation_->arguments[static_cast<std::size_t>(*index)];
    auto& now = stack_[first_ + static_cast<std::size_t>(*index)];
    if (replayed.isDevice() && replayed.toDevice().is_meta()) replayed = at::Device(at::kCPU);
    if (now.isDevice() || operation_->operands.empty()) now = at::Device(at::kMeta);
  }

  ContentPtr last_result() const {
    const auto index = operation_->results.size() - 1;
    return std::make_shared<Content>(Content{operation_->results.back().bytes, operation_, index});
  }

  void note(const at::Tensor& tensor, std::size_t index,
            const std::shared_ptr<Construction>& construction) {
    ContentPtr content;
    if (!is_delayed(tensor)) {
      operation_->results.push_back(
          {false, index, Geometry::of(tensor), tensor.storage().nbytes()});
      content = last_result();
      if (!filled_.defined()) filled_ = tensor;
    }
    make_delayed(tensor, content, construction);
  }

  Stack& stack_;
  std::size_t first_;
  std::shared_ptr<Operation> operation_;
  std::vector<at::Tensor> operands_;
  at::Tensor filled_;
};

/// Records operators instead of running them; draws no random numbers.
class Recorder final : public OperatorHook {
 public:
  /// @param computes  if false, an operator that needs values is refused
  Recorder(std::shared_ptr<Construction> construction, bool computes)
      : construction_(std::move(construction)), computes_(computes) {}
  ~Recorder() override { settle(); }

  /// Lets the generators catch up with the draws that were recorded.
  void settle() {
    if (stream_) std::move(*stream_).settle();
    stream_.reset();
  }

  void run(const OperatorHandle& op, Stack& stack) override {
    fill_placed(op, stack);
    const auto arguments = look_at(op, stack);
    if (!arguments.delayed && !makes_delayed(op, stack)) {
      run_now(op, stack);
    } else if (arguments.delayed && arguments.writes_real) {
      run_on_values(op, stack);
    } else {
      record(op, stack);
    }
  }

 private:
  void run_now(const OperatorHandle& op, Stack& stack) {
    if (draws_random(op)) settle();
    op.callBoxed(&stack);
  }

  void record(const OperatorHandle& op, Stack& stack) {
    const auto given = stack;
    Recording recording(op, stack);
    try {
      recording.run();
    } catch (const c10::NotImplementedError&) {
      stack = given;
      return run_on_values(op, stack);
    }
    if (recording.publish(construction_) && draws_random(op)) give_randomness(recording);
  }

  void run_on_values(const OperatorHandle& op, Stack& stack) {
    SMP_REQUIRE(computes_, no_values_yet(op.schema().name()));
    map_arguments(op, stack, [&](const at::Tensor& tensor, bool written) {
      if (!is_delayed(tensor)) return tensor;
      SMP_REQUIRE_AS(UnsupportedError, !written, op.schema().name(),
                     " cannot be put off under smp::delay_param_initialization, for what it writes "
                     "depends on values; build this module outside of the scope");
      return Materialiser().values_of(tensor);
    });
    run_now(op, stack);
  }

  void give_randomness(const Recording& recording) {
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
    auto& stream = stream_of(own.defined() ? own : base::default_generator());
    random.position = stream.position();
    random.count = counts_.of(operation.op, recording.filled());
    if (random.count) {
      stream.skip(*random.count);
    } else {
      Evaluation(cursor_).run_for_its_draws(recording.operation());
      stream.go_on_from(cursor_.generator());
    }
    if (own.defined()) settle();
  }

  RandomStream& stream_of(const at::Generator& generator) {
    if (stream_ && !stream_->follows(generator)) settle();
    if (!stream_) stream_.emplace(generator);
    return *stream_;
  }

  std::shared_ptr<Construction> construction_;
  bool computes_;
  std::optional<RandomStream> stream_;
  DrawCounts counts_;
  RandomCursor cursor_;
};

std::shared_ptr<Construction> new_construction(InitOrder order) {
  auto construction = std::make_shared<Construction>();
  construction->by_path = order == InitOrder::kByPath;
  if (construction->by_path) {
    construction->key =
        static_cast<at::CPUGeneratorImpl*>(base::default_generator().unsafeGetGeneratorImpl())
            ->random64();
  }
  return construction;
}

/// Settles the scope around this one, so that this one goes on at the same point of the stream.
void settle_outer_scope() {
  if (auto* outer = dynamic_cast<Recorder*>(operator_hook().get())) outer->settle();
}

}  // namespace

void run_without_hook(const OperatorHandle& op, Stack& stack) {
  fill_placed(op, stack);
  const auto arguments = look_at(op, stack);
  if (!arguments.delayed) return op.callBoxed(&stack);
  SMP_REQUIRE(arguments.writes_delayed || !arguments.real, no_values_yet(op.schema().name()));
  Recorder(arguments.construction, /*computes=*/false).run(op, stack);
}

}  // namespace deferred

struct delay_param_initialization::State {
  explicit State(InitOrder order)
      : recorder(deferred::new_construction(order), /*computes=*/true), scope(recorder) {}
  deferred::Recorder recorder;
  deferred::HookScope scope;
};

delay_param_initialization::delay_param_initialization(InitOrder order) {
  if (deferred::is_switched_off()) return;
  deferred::add_meta_kernels();
  deferred::settle_outer_scope();
  state_ = std::make_unique<State>(order);
}

delay_param_initialization::~delay_param_initialization() = default;

}  // namespace smp
