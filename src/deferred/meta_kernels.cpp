// deferred/meta_kernels.cpp: one boxed kernel that works by example, and where it is registered.
#include "deferred/meta_kernels.h"

#include <ATen/ExpandUtils.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/scalar_tensor.h>
#include <torch/library.h>

#include <algorithm>
#include <string>
#include <vector>

#include "deferred/delayed_tensors.h"
#include "deferred/example.h"
#include "deferred/operator_hook.h"

namespace smp::deferred {
namespace {

using c10::DispatchKey;

bool works_in_place(const c10::OperatorHandle& op) { return op.schema().name().back() == '_'; }

/// Leaves the first argument of an operator that works in place as its result, if it has one.
void leave_as_is(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  const auto first = first_argument(op, stack);
  stack.resize(first + op.schema().returns().size());
}

void by_example(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  if (works_in_place(op)) {
    leave_as_is(op, *stack);
  } else {
    run_by_example(op, *stack);
  }
}

bool returns_tensors(const c10::FunctionSchema& schema) {
  return std::all_of(schema.returns().begin(), schema.returns().end(), [](const auto& result) {
    return result.type()->isSubtypeOf(*c10::TensorType::get()) ||
           result.type()->isSubtypeOf(*c10::ListType::ofTensors());
  });
}

bool needs_shape_function(const c10::OperatorHandle& op) {
  if (!op.hasSchema() || !op.hasKernelForDispatchKey(DispatchKey::CPU)) return false;
  if (!returns_tensors(op.schema())) return false;
  if (op.hasTag(at::Tag::dynamic_output_shape) || op.hasTag(at::Tag::data_dependent_output)) {
    return false;
  }
  for (const auto key : {DispatchKey::Meta, DispatchKey::CompositeImplicitAutograd,
                         DispatchKey::CompositeExplicitAutograd,
                         DispatchKey::CompositeExplicitAutogradNonFunctional}) {
    if (op.hasKernelForDispatchKey(key)) return false;
  }
  return true;
}

/// Returns the meta tensor of a convolution's result, since LibTorch leaves the convolution of an
/// unknown device to extensions.
at::Tensor convolution(const at::Tensor& input, const at::Tensor& weight,
                       const std::optional<at::Tensor>&, at::IntArrayRef stride,
                       at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed,
                       at::IntArrayRef output_padding, std::int64_t groups) {
  std::vector<std::int64_t> sizes{input.size(0),
                                  transposed ? weight.size(1) * groups : weight.size(0)};
  for (std::int64_t i = 0; i < input.dim() - 2; ++i) {
    const auto size = input.size(i + 2);
    const auto kernel = dilation[i] * (weight.size(i + 2) - 1);
    sizes.push_back(transposed
                        ? (size - 1) * stride[i] - 2 * padding[i] + kernel + output_padding[i] + 1
                        : (size + 2 * padding[i] - kernel - 1) / stride[i] + 1);
  }
  return at::empty(sizes, input.options());
}

/// By example it would take memory and time for all scores of an attention, which ends in it.
at::Tensor& where_out(const at::Tensor& condition, const at::Tensor& self, const at::Tensor& other,
                      at::Tensor& out) {
  const auto sizes = at::infer_size(at::infer_size(condition.sizes(), self.sizes()), other.sizes());
  if (out.sizes() != at::IntArrayRef(sizes)) out.resize_(sizes);
  return out;
}

/// Returns the meta tensor of a number; but a real one on a thread of a constructor, where
/// factories are not seen: `weight[0] = 2` makes the number on the device that the delayed weight
/// names.
at::Tensor scalar_tensor(const at::Scalar& number, std::optional<at::ScalarType> type,
                         std::optional<at::Layout>, std::optional<at::Device>,
                         std::optional<bool>) {
  const auto options = at::TensorOptions(type.value_or(c10::get_default_dtype_as_scalartype()));
  if (operator_hook().get() == nullptr && open_scopes() > 0) {
    return at::scalar_tensor(number, options.device(at::kCPU));
  }
  return at::empty({}, options.device(at::kMeta));
}

/// Registers all kernels. The process must keep the libraries: destroying one takes its kernels
/// away.
std::vector<torch::Library> register_all() {
  std::vector<torch::Library> libraries;
  libraries.emplace_back(torch::Library::IMPL, "aten", DispatchKey::Meta, __FILE__, __LINE__);
  libraries.back().impl("convolution_overrideable", &convolution);
  libraries.back().impl("scalar_tensor", &scalar_tensor);
  libraries.back().impl("where.self_out", &where_out);
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    if (name.name.rfind("aten::", 0) != 0) continue;
    const auto op = dispatcher.findOp(name);
    if (!op || !needs_shape_function(*op)) continue;
    const auto text = name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
    libraries.back().impl(text.c_str(), torch::CppFunction::makeFromBoxedFunction<&by_example>());
  }
  return libraries;
}

}  // namespace

void add_meta_kernels() { static const auto libraries = register_all(); }

at::Tensor shape_of(const at::Tensor& tensor) {
  if (tensor.is_meta() || tensor.unsafeGetTensorImpl()->is_wrapped_number()) return tensor;
  return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(at::kMeta));
}

}  // namespace smp::deferred
