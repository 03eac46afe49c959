// deferred/recipe.cpp: replaying operators on real tensors.
#include "deferred/recipe.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <map>
#include <optional>
#include <unordered_set>
#include <utility>

#include "base/check.h"
#include "base/random.h"
#include "deferred/operator_hook.h"
#include "deferred/recordable.h"

namespace smp::deferred {
namespace {

/// Keeps the operators of a replay from being recorded, building a graph, or following the caller's
/// autocast or inference mode.
class PlainModes {
 public:
  PlainModes()
      : keys_(c10::DispatchKeySet(c10::DispatchKey::DeferredInit) | c10::autocast_dispatch_keyset) {
  }

 private:
  c10::InferenceMode no_inference_{false};
  at::NoGradGuard no_grad_;
  c10::impl::ExcludeDispatchKeyGuard keys_;
};

class DefaultType {
 public:
  explicit DefaultType(at::ScalarType type) : outer_(c10::get_default_dtype()) {
    c10::set_default_dtype(c10::scalarTypeToTypeMeta(type));
  }
  ~DefaultType() { c10::set_default_dtype(outer_); }

 private:
  caffe2::TypeMeta outer_;
};

/// Replaces the default generator while it lives.
class GeneratorScope {
 public:
  explicit GeneratorScope(at::Generator generator)
      : outer_(std::exchange(base::default_generator(), std::move(generator))) {}
  ~GeneratorScope() { base::default_generator() = std::move(outer_); }

 private:
  at::Generator outer_;
};

at::Storage new_storage(std::size_t bytes) {
  return at::empty({static_cast<std::int64_t>(bytes)}, at::TensorOptions(at::kByte)).storage();
}

at::Storage zeroed(std::size_t bytes) {
  return at::zeros({static_cast<std::int64_t>(bytes)}, at::TensorOptions(at::kByte)).storage();
}

at::Storage copy_of(const at::Storage& storage) {
  const Geometry bytes{{static_cast<std::int64_t>(storage.nbytes())}, {1}, 0, at::kByte};
  return bytes.on(storage).clone().storage();
}

/// Returns the storage of a returned tensor, laid out as the recipe expects it.
at::Storage conforming(const Operation& operation, const at::Tensor& tensor, const Result& result) {
  const auto& wanted = result.geometry;
  SMP_ASSERT(tensor.sizes() == at::IntArrayRef(wanted.sizes) && tensor.scalar_type() == wanted.type,
             operation.op.schema().name(), " gave ", tensor.sizes(), " of ", tensor.scalar_type(),
             " where its shapes alone gave ", at::IntArrayRef(wanted.sizes), " of ", wanted.type);
  if (tensor.strides() == at::IntArrayRef(wanted.strides) &&
      tensor.storage_offset() == wanted.offset && tensor.storage().nbytes() >= result.bytes) {
    return tensor.storage();
  }
  auto storage = new_storage(result.bytes);
  wanted.on(storage).copy_(tensor);
  return storage;
}

/// Returns the storage of a content that no operation makes.
/// @param values  if false, zeros may stand for bytes that are not here
at::Storage first_storage(const Content& content, bool values) {
  if (!content.given) return new_storage(content.bytes);
  if (!values && !content.given->storage) return zeroed(content.bytes);
  SMP_REQUIRE(content.given->storage,
              "values are needed of a tensor into which others were loaded: they come when the "
              "smp::DistributedModel that they were loaded into is placed, at the first step or by "
              "place(). Call its place() before what needs them (an operator that is not put off, "
              "see docs/delayed_initialisation.md; a copy into another model), on every rank");
  return content.given->storage;
}

/// Identifies a content: one operation may have several results, and many contents have no maker.
using Key = std::pair<const void*, std::size_t>;

Key key_of(const ContentPtr& content) {
  if (content->maker) return {content->maker.get(), content->result};
  return {content.get(), 0};
}

/// The storages of one evaluation, each kept as long as it is needed.
class Workspace {
 public:
  /// @param values  if false, nobody looks at the results
  explicit Workspace(bool values = true) : values_(values) {}

  void need(const ContentPtr& content) { ++entries_[key_of(content)].uses; }
  /// Returns the storage of `content` and counts `uses` of its uses as done. With `written` the
  /// storage may be changed: it is the content's own if nobody else needs that, else a copy.
  at::Storage take(const ContentPtr& content, std::size_t uses, bool written) {
    const auto found = entries_.find(key_of(content));
    auto& entry = found->second;
    if (!entry.storage) entry.storage = first_storage(*content, values_);
    entry.uses -= uses;
    auto storage = entry.storage;
    // What was given may be needed by other recipes, too.
    const bool shared = entry.uses > 0 || content->given;
    if (entry.uses == 0) entries_.erase(found);
    return written && shared ? copy_of(storage) : storage;
  }
  void put(const Operation& maker, std::size_t result, at::Storage storage) {
    const auto found = entries_.find({&maker, result});
    if (found != entries_.end()) found->second.storage = std::move(storage);
  }

 private:
  struct Entry {
    std::size_t uses = 0;
    at::Storage storage;
  };
  const bool values_;
  std::map<Key, Entry> entries_;
};

/// Returns the operands as real tensors. Views of one content share its storage.
std::vector<at::Tensor> take_operands(const Operation& operation, Workspace& workspace) {
  struct Use {
    ContentPtr content;
    std::size_t count = 0;
    bool written = false;
    at::Storage storage;
  };
  std::map<Key, Use> uses;
  for (const auto& operand : operation.operands) {
    auto& use = uses[key_of(operand.content)];
    use.content = operand.content;
    ++use.count;
    use.written = use.written || operand.written;
  }
  for (auto& [key, use] : uses) use.storage = workspace.take(use.content, use.count, use.written);
  std::vector<at::Tensor> tensors;
  for (const auto& operand : operation.operands) {
    tensors.push_back(operand.geometry.on(uses.at(key_of(operand.content)).storage));
  }
  return tensors;
}

torch::jit::Stack arguments_with(const Operation& operation,
                                 const std::vector<at::Tensor>& operands) {
  auto arguments = operation.arguments;
  std::size_t next = 0;
  map_arguments(operation.op, arguments, [&](const at::Tensor& tensor, bool) {
    return tensor.is_meta() ? operands[next++] : tensor;
  });
  return arguments;
}

/// Gives `generator` to an operator that draws, so that what other threads draw meanwhile from the
/// default one is not touched.
/// @return the operator to call: `op`, or its overload that takes a generator; nothing, with the
/// stack as it was, if it draws from the default one only (dropout)
std::optional<c10::OperatorHandle> with_generator(const c10::OperatorHandle& op,
                                                  torch::jit::Stack& stack,
                                                  const at::Generator& generator) {
  constexpr const char* kArgument = "generator";
  const auto& schema = op.schema();
  if (const auto own = schema.argumentIndexWithName(kArgument)) {
    stack[first_argument(op, stack) + static_cast<std::size_t>(*own)] = generator;
    return op;
  }
  auto overload = schema.overload_name();
  overload = overload.empty() ? kArgument : overload + '_' + kArgument;
  auto other = c10::Dispatcher::singleton().findSchema({schema.name(), overload});
  if (!other) return std::nullopt;
  torch::jit::Stack given;
  for (const auto& argument : other->schema().arguments()) {
    if (argument.name() == kArgument) {
      given.emplace_back(generator);
      continue;
    }
    const auto index = schema.argumentIndexWithName(argument.name());
    if (!index) return std::nullopt;
    given.push_back(stack[first_argument(op, stack) + static_cast<std::size_t>(*index)]);
  }
  stack = std::move(given);
  return other;
}

void call_drawing(const Operation& operation, torch::jit::Stack& stack, RandomCursor& cursor) {
  if (!operation.random) {
    operation.op.callBoxed(&stack);
  } else if (const auto& random = *operation.random; random.position) {
    const auto& generator = cursor.at(*random.position, random.count);
    if (const auto taking = with_generator(operation.op, stack, generator)) {
      taking->callBoxed(&stack);
    } else {
      const GeneratorScope scope(generator);
      operation.op.callBoxed(&stack);
    }
  } else {
    const base::RandomScope scope(random.key);
    operation.op.callBoxed(&stack);
  }
}

/// Lets autograd follow as it did, where it did: some operators compute otherwise then.
bool follow_gradients(const Operation& operation, const std::vector<at::Tensor>& tensors) {
  bool any = false;
  for (const auto& operand : operation.operands) {
    if (operand.written) return false;
    any = any || operand.requires_grad;
  }
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    tensors[i].set_requires_grad(operation.operands[i].requires_grad);
  }
  return any;
}

void call(const Operation& operation, const std::vector<at::Tensor>& operands,
          torch::jit::Stack& stack, RandomCursor& cursor) {
  const DefaultType type(operation.default_type);
  const at::AutoGradMode gradients(follow_gradients(operation, operands));
  try {
    call_drawing(operation, stack, cursor);
  } catch (const c10::Error& error) {
    throw UsageError(base::concat(
        operation.op.schema().name(),
        " was put off by smp::delay_param_initialization, and failed on its values when they were "
        "computed: ",
        error.what_without_backtrace(), ". Build this module outside of that scope"));
  }
}

void execute(const Operation& operation, Workspace& workspace, RandomCursor& cursor) {
  const auto operands = take_operands(operation, workspace);
  auto stack = arguments_with(operation, operands);
  call(operation, operands, stack, cursor);
  std::vector<at::Tensor> returned;
  map_results(stack, 0, [&](const at::Tensor& tensor, bool) {
    returned.push_back(tensor);
    return tensor;
  });
  for (std::size_t i = 0; i < operation.results.size(); ++i) {
    const auto& result = operation.results[i];
    workspace.put(operation, i,
                  result.of_operand ? operands[result.index].storage()
                                    : conforming(operation, returned[result.index], result));
  }
}

/// Collects operations without recursion, in any order; the caller sorts them.
class Collector {
 public:
  void visit(Operation* operation) {
    if (operation != nullptr && seen_.insert(operation).second) operations_.push_back(operation);
  }
  std::vector<Operation*> collect() && {
    for (std::size_t i = 0; i < operations_.size(); ++i) {
      for (const auto& operand : operations_[i]->operands) visit(operand.content->maker.get());
    }
    std::stable_sort(operations_.begin(), operations_.end(),
                     [](const auto* a, const auto* b) { return a->depth < b->depth; });
    return std::move(operations_);
  }

 private:
  std::unordered_set<Operation*> seen_;
  std::vector<Operation*> operations_;
};

void execute_all(const std::vector<Operation*>& operations, Workspace& workspace,
                 RandomCursor& cursor) {
  for (const auto* operation : operations) {
    for (const auto& operand : operation->operands) workspace.need(operand.content);
  }
  const PlainModes modes;
  for (const auto* operation : operations) execute(*operation, workspace, cursor);
}

}  // namespace

Geometry Geometry::of(const at::Tensor& tensor) {
  return {tensor.sizes().vec(), tensor.strides().vec(), tensor.storage_offset(),
          tensor.scalar_type(), tensor.is_conj(),       tensor.is_neg()};
}

at::Tensor Geometry::on(const at::Storage& storage) const {
  const auto key = c10::computeDispatchKey(type, at::kStrided, storage.device());
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(
      at::Storage(storage), c10::DispatchKeySet(key), c10::scalarTypeToTypeMeta(type));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, offset);
  if (conjugate) tensor._set_conj(true);
  if (negative) tensor._set_neg(true);
  return tensor;
}

Operation::~Operation() {
  auto operands_left = std::move(operands);
  while (!operands_left.empty()) {
    const auto content = std::move(operands_left.back().content);
    operands_left.pop_back();
    if (content.use_count() != 1 || content->maker.use_count() != 1) continue;
    auto& more = content->maker->operands;
    operands_left.insert(operands_left.end(), std::make_move_iterator(more.begin()),
                         std::make_move_iterator(more.end()));
    more.clear();
  }
}

std::vector<Operation*> operations_of(const ContentPtr& content) {
  Collector collector;
  collector.visit(content->maker.get());
  return std::move(collector).collect();
}

bool is_complete(const ContentPtr& content) {
  const auto here = [](const ContentPtr& part) { return !part->given || part->given->storage; };
  if (!here(content)) return false;
  for (const auto* operation : operations_of(content)) {
    for (const auto& operand : operation->operands) {
      if (!here(operand.content)) return false;
    }
  }
  return true;
}

at::Storage Evaluation::run(const ContentPtr& content) {
  Workspace workspace;
  workspace.need(content);
  execute_all(operations_of(content), workspace, cursor_);
  return workspace.take(content, 1, false);
}

void Evaluation::run_for_its_draws(const std::shared_ptr<Operation>& operation) {
  auto alone = operation;
  if (!operation->operands.empty() && ignores_first_values(operation->op)) {
    // Nor does what was there before decide how many are drawn.
    alone = std::make_shared<Operation>(operation->op);
    alone->arguments = operation->arguments;
    alone->operands = operation->operands;
    alone->random = operation->random;
    alone->default_type = operation->default_type;
    alone->depth = operation->depth;
    auto& first = alone->operands[0].content;
    first = std::make_shared<Content>(Content{first->bytes, nullptr, 0});
  }
  Workspace workspace(/*values=*/false);
  Collector collector;
  collector.visit(alone.get());
  execute_all(std::move(collector).collect(), workspace, cursor_);
}

}  // namespace smp::deferred
