// trial/operators/operator_work.cpp: formulas for the operators that dominate; bytes for all
// others.
#include "trial/operators/operator_work.h"

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <string_view>
#include <unordered_map>

namespace smp::partitioning {
namespace {

using Inputs = c10::ArrayRef<const c10::IValue>;

Work default_work(Inputs inputs) {
  Work work;
  for (const auto& input : inputs) {
    each_tensor(input, [&](const at::Tensor& tensor) { work.bytes += bytes_of(tensor); });
  }
  return work;
}

/// A matrix product: [..., n, k] times [..., k, m], or times a vector [k]. The left operand is
/// argument number `kLeft`.
template <int kLeft>
Work product(Inputs inputs) {
  Work work = default_work(inputs);
  const auto& left = inputs[kLeft].toTensor();
  const auto& right = inputs[kLeft + 1].toTensor();
  const auto columns = right.dim() < 2 ? 1 : right.size(-1);
  work.flops = 2.0 * static_cast<double>(left.numel()) * static_cast<double>(columns);
  return work;
}

/// convolution(input, weight [out, in / groups, ...], bias, stride, padding, dilation, transposed);
/// a transposed one has weight [in, out / groups, ...].
Work convolution(Inputs inputs) {
  Work work = default_work(inputs);
  const auto& input = inputs[0].toTensor();
  const auto& weight = inputs[1].toTensor();
  const double per_channel =
      2.0 * static_cast<double>(weight.numel()) / static_cast<double>(weight.size(0));
  if (inputs[6].toBool()) {
    work.flops = per_channel * static_cast<double>(input.numel());
  } else {
    work.flops_per_element = per_channel;
  }
  return work;
}

/// scaled_dot_product_attention(query [..., L, E], key [..., S, E], value [..., S, V]).
Work attention(Inputs inputs) {
  Work work = default_work(inputs);
  const auto& query = inputs[0].toTensor();
  const auto& key = inputs[1].toTensor();
  const auto& value = inputs[2].toTensor();
  const double rows = static_cast<double>(query.numel()) / static_cast<double>(query.size(-1));
  const double both = static_cast<double>(query.size(-1) + value.size(-1));
  work.flops = 2.0 * rows * static_cast<double>(key.size(-2)) * both;
  return work;
}

/// lstm, gru, rnn_tanh, rnn_relu (input [T, B, F], hidden state, weights and biases, ...).
Work recurrent(Inputs inputs) {
  Work work = default_work(inputs);
  const auto& input = inputs[0].toTensor();
  const double steps = static_cast<double>(input.numel()) / static_cast<double>(input.size(-1));
  each_tensor(inputs[2], [&](const at::Tensor& weight) {
    if (weight.dim() == 2) work.flops += 2.0 * steps * static_cast<double>(weight.numel());
  });
  return work;
}

/// A look-up of rows in a table (an embedding): it reads as many bytes of the table as it writes.
template <int kTable>
Work lookup(Inputs inputs) {
  Work work = default_work(inputs);
  work.bytes -= bytes_of(inputs[kTable].toTensor());
  work.moves_per_byte = 2;
  return work;
}

/// An operator that draws one random number per element of its output.
Work random_numbers(Inputs inputs) {
  Work work = default_work(inputs);
  work.draws_per_element = 1;
  return work;
}

/// The formulas for an operator whose work is more than moving its bytes, or whose backward is not
/// one pass over them.
struct Formula {
  Work (*work)(Inputs) = default_work;
  Backward backward = Backward::kPerElement;
};

const Formula* formula_of(const std::string& name) {
  using enum Backward;
  static const std::unordered_map<std::string_view, Formula> formulas{
      {"aten::mm", {product<0>, kProducts}},
      {"aten::bmm", {product<0>, kProducts}},
      {"aten::mv", {product<0>, kProducts}},
      {"aten::dot", {product<0>, kProducts}},
      {"aten::addmm", {product<1>, kProducts}},
      {"aten::addmm_", {product<1>, kProducts}},
      {"aten::addmv", {product<1>, kProducts}},
      {"aten::addbmm", {product<1>, kProducts}},
      {"aten::baddbmm", {product<1>, kProducts}},
      {"aten::baddbmm_", {product<1>, kProducts}},
      {"aten::convolution", {convolution, kProducts}},
      {"aten::scaled_dot_product_attention", {attention, kAttention}},
      {"aten::lstm", {recurrent, kRecurrent}},
      {"aten::gru", {recurrent, kRecurrent}},
      {"aten::rnn_tanh", {recurrent, kRecurrent}},
      {"aten::rnn_relu", {recurrent, kRecurrent}},
      {"aten::embedding", {lookup<0>, kScatter}},
      {"aten::_embedding_bag", {lookup<0>, kScatter}},
      {"aten::index_select", {lookup<0>, kScatter}},
      {"aten::index", {lookup<0>, kScatter}},
      {"aten::gather", {lookup<0>, kScatter}},
      {"aten::bernoulli", {random_numbers, kNone}},
      {"aten::bernoulli_", {random_numbers, kNone}},
      {"aten::native_dropout", {random_numbers}},
      {"aten::normal_", {random_numbers, kNone}},
      {"aten::uniform_", {random_numbers, kNone}},
  };
  const auto found = formulas.find(name);
  return found == formulas.end() ? nullptr : &found->second;
}

/// Returns the formula of an operator, or nullptr. There is none for recurrent layers of packed
/// sequences (overload "data"), whose arguments have another order: batch sizes come second.
const Formula* formula_of(const c10::OperatorName& name) {
  if (name.overload_name == "data") return nullptr;
  return formula_of(name.name);
}

/// The kind of backward of an operator without a formula.
Backward backward_of(const std::string& name, Accounting accounting) {
  using enum Backward;
  static const std::unordered_map<std::string_view, Backward> known{
      {"aten::add", kPassedOn},    {"aten::add_", kPassedOn},   {"aten::sub", kPassedOn},
      {"aten::sub_", kPassedOn},   {"aten::sum", kPassedOn},    {"aten::clone", kPassedOn},
      {"aten::expand", kPassedOn}, {"aten::cat", kNone},        {"aten::slice", kPadded},
      {"aten::select", kPadded},   {"aten::split", kPadded},    {"aten::split_with_sizes", kPadded},
      {"aten::unbind", kPadded},   {"aten::diagonal", kPadded}, {"aten::unfold", kPadded},
  };
  if (const auto found = known.find(name); found != known.end()) return found->second;
  return accounting == Accounting::kFree ? kNone : kPerElement;
}

bool makes_no_values(const c10::FunctionSchema& schema) {
  static const std::vector<std::string_view> names{
      "aten::empty",        "aten::empty_like",          "aten::empty_strided", "aten::resize_",
      "aten::_unsafe_view", "aten::_local_scalar_dense", "aten::item",          "aten::lift_fresh"};
  if (std::find(names.begin(), names.end(), schema.name()) != names.end()) return true;
  return std::any_of(schema.returns().begin(), schema.returns().end(), [](const auto& result) {
    return result.alias_info() != nullptr && !result.alias_info()->isWrite();
  });
}

/// True for operators of batch and instance normalisation, which change running statistics that
/// their schema calls read-only. Those of their backwards are given them as well, and only read.
bool writes_silently(const std::string& name) {
  const auto has = [&](const char* part) { return name.find(part) != std::string::npos; };
  return (has("batch_norm") || has("instance_norm")) && !has("backward");
}

OperatorKind find_kind(const c10::OperatorName& name) {
  OperatorKind kind;
  kind.work = default_work;
  const auto op = c10::Dispatcher::singleton().findSchema(name);
  if (!op) return kind;
  const auto& arguments = op->schema().arguments();
  for (int i = 0; i < static_cast<int>(arguments.size()); ++i) {
    const auto* alias = arguments[i].alias_info();
    if ((alias != nullptr && alias->isWrite()) || writes_silently(name.name)) {
      kind.written.push_back(i);
    }
  }
  const Formula* formula = formula_of(name);
  if (formula != nullptr) {
    kind.work = formula->work;
  } else if (op->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd)) {
    kind.accounting = Accounting::kParts;
  } else if (makes_no_values(op->schema())) {
    kind.accounting = Accounting::kFree;
  }
  kind.backward = formula != nullptr ? formula->backward : backward_of(name.name, kind.accounting);
  kind.convolves = name.name == "aten::convolution";
  return kind;
}

/// True for a leaf of the autograd graph (a weight as its module holds it) and for a view of one
/// (a weight transposed for a product).
bool is_weight(const at::Tensor& tensor) {
  return tensor.is_leaf() || (tensor.is_view() && tensor._base().is_leaf());
}

/// The kernel that computes the gradient of one operand of a product. The gradient of a vector,
/// such as a bias, is a sum; that of any other operand is a product like the forward's.
Kernel product_kernel(const Kernel& forward, const OutputSizes& outputs,
                      const GradientWishes::Wish& wish) {
  Kernel kernel = forward;
  if (wish.is_vector) {
    kernel.flops = 0;
    kernel.bytes = outputs.bytes + wish.bytes;
  }
  return kernel;
}

}  // namespace

OperatorKind kind_of(const c10::OperatorName& name) {
  thread_local std::unordered_map<c10::OperatorName, OperatorKind> kinds;
  const auto found = kinds.find(name);
  return found != kinds.end() ? found->second : kinds.emplace(name, find_kind(name)).first->second;
}

Kernel forward_kernel(const Work& work, const OutputSizes& outputs) {
  return {work.flops + work.flops_per_element * outputs.elements,
          work.bytes + work.moves_per_byte * outputs.bytes, outputs.precision, false,
          work.draws_per_element * outputs.elements};
}

GradientWishes gradient_wishes(const OperatorKind& kind, Inputs inputs) {
  GradientWishes wanted{{}, kind.backward};
  if (kind.backward == Backward::kNone || !at::GradMode::is_enabled()) return {};
  for (const auto& input : inputs) {
    each_tensor(input, [&](const at::Tensor& tensor) {
      if (!tensor.requires_grad()) return;
      wanted.wishes.push_back({bytes_of(tensor), is_weight(tensor), tensor.dim() < 2});
    });
  }
  return wanted;
}

void each_backward_kernel(const GradientWishes& wishes, const Kernel& forward,
                          const OutputSizes& outputs,
                          const std::function<void(const Kernel&)>& visit) {
  if (!outputs.wants_gradient) return;
  constexpr double kAttentionProducts = 5.0 / 2;  // over those of the forward
  constexpr double kAdded = 3;                    // sum and gradient read, sum written
  Kernel whole{0, 0, outputs.precision};          // of all operands at once
  for (const auto& wish : wishes.wishes) {
    Kernel own{0, 0, outputs.precision, wish.leaf};
    switch (wishes.backward) {
      case Backward::kProducts:
        own = product_kernel(forward, outputs, wish);
        own.for_weights = wish.leaf;
        break;
      case Backward::kScatter:
        own.bytes = wish.bytes + kAdded * outputs.bytes;
        break;
      case Backward::kPadded:
        own.bytes = wish.bytes + 2 * outputs.bytes;
        break;
      case Backward::kPassedOn:
        if (wish.bytes < outputs.bytes) own.bytes = wish.bytes + outputs.bytes;
        break;
      default:
        whole.bytes += 2 * wish.bytes;
    }
    if (own.bytes > 0) visit(own);
    if (wish.leaf) visit({0, kAdded * wish.bytes, outputs.precision, true});
  }
  if (whole.bytes == 0) return;
  whole.bytes += outputs.bytes;
  if (wishes.backward == Backward::kAttention) whole.flops = kAttentionProducts * forward.flops;
  if (wishes.backward == Backward::kRecurrent) whole.flops = forward.flops;
  visit(whole);
  if (wishes.backward != Backward::kRecurrent) return;
  whole.for_weights = std::any_of(wishes.wishes.begin(), wishes.wishes.end(),
                                  [](const auto& wish) { return wish.leaf; });
  if (whole.for_weights) visit(whole);
}

base::Precision precision_of(at::ScalarType type, bool convolves) {
  using enum base::Precision;
  if (type == at::kHalf || type == at::kBFloat16) return kHalf;
  if (type == at::kDouble || type == at::kComplexDouble) return kFloat64;
  const auto& context = at::globalContext();
  const bool short_products =
      convolves ? context.allowTF32CuDNN(at::Float32Op::CONV) : context.allowTF32CuBLAS();
  return short_products ? kTf32 : kFloat32;
}

void each_tensor(const c10::IValue& value, const std::function<void(const at::Tensor&)>& visit) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) visit(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) {
      if (tensor.defined()) visit(tensor);
    }
  } else if (value.isList()) {
    for (const c10::IValue& element : value.toListRef()) each_tensor(element, visit);
  }
}

double bytes_of(const at::Tensor& tensor) {
  return static_cast<double>(tensor.numel()) * static_cast<double>(tensor.element_size());
}

}  // namespace smp::partitioning
