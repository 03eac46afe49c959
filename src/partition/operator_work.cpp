// partition/operator_work.cpp: formulas for the operators that dominate; bytes for all others.
#include "partition/operator_work.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <string_view>
#include <unordered_map>

namespace smp::partitioning {
namespace {

using Inputs = c10::ArrayRef<const c10::IValue>;

// One core of a server, and what LibTorch and autograd spend on any operator.
constexpr double kFlopsPerSecond = 50e9;
constexpr double kBytesPerSecond = 10e9;
constexpr double kOverhead = 3e-6;

Work default_work(Inputs inputs) {
  Work work;
  for (const auto& input : inputs) {
    each_tensor(input, [&](const at::Tensor& tensor) { work.bytes += bytes_of(tensor); });
  }
  return work;
}

/// [..., n, k] times [..., k, m], or times a vector [k].
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

/// Rows of a table: what is read is as large as what is written.
template <int kTable>
Work lookup(Inputs inputs) {
  Work work = default_work(inputs);
  work.bytes -= bytes_of(inputs[kTable].toTensor());
  work.moves_per_byte = 2;
  return work;
}

using Formula = Work (*)(Inputs);

Formula formula_of(const std::string& name) {
  static const std::unordered_map<std::string_view, Formula> formulas{
      {"aten::mm", product<0>},           {"aten::bmm", product<0>},
      {"aten::mv", product<0>},           {"aten::dot", product<0>},
      {"aten::addmm", product<1>},        {"aten::addmm_", product<1>},
      {"aten::addmv", product<1>},        {"aten::addbmm", product<1>},
      {"aten::baddbmm", product<1>},      {"aten::baddbmm_", product<1>},
      {"aten::convolution", convolution}, {"aten::scaled_dot_product_attention", attention},
      {"aten::lstm", recurrent},          {"aten::gru", recurrent},
      {"aten::rnn_tanh", recurrent},      {"aten::rnn_relu", recurrent},
      {"aten::embedding", lookup<0>},     {"aten::_embedding_bag", lookup<0>},
      {"aten::index_select", lookup<0>},  {"aten::index", lookup<0>},
      {"aten::gather", lookup<0>},
  };
  const auto found = formulas.find(name);
  return found == formulas.end() ? nullptr : found->second;
}

/// Recurrent layers of packed sequences have another order of arguments: batch sizes come second.
Formula formula_of(const c10::OperatorName& name) {
  if (name.overload_name == "data") return nullptr;
  return formula_of(name.name);
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

/// The operators of batch and instance normalisation change running statistics that their schema
/// calls read-only.
bool writes_silently(const std::string& name) {
  return name.find("batch_norm") != std::string::npos ||
         name.find("instance_norm") != std::string::npos;
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
  if (const Formula formula = formula_of(name)) {
    kind.work = formula;
  } else if (op->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd)) {
    kind.accounting = Accounting::kParts;
  } else if (makes_no_values(op->schema())) {
    kind.accounting = Accounting::kFree;
  }
  return kind;
}

}  // namespace

OperatorKind kind_of(const c10::OperatorName& name) {
  thread_local std::unordered_map<c10::OperatorName, OperatorKind> kinds;
  const auto found = kinds.find(name);
  return found != kinds.end() ? found->second : kinds.emplace(name, find_kind(name)).first->second;
}

double seconds_of(const Work& work, double output_elements, double output_bytes) {
  const double flops = work.flops + work.flops_per_element * output_elements;
  const double bytes = work.bytes + work.moves_per_byte * output_bytes;
  return kOverhead + std::max(flops / kFlopsPerSecond, bytes / kBytesPerSecond);
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
