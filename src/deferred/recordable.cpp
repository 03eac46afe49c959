// deferred/recordable.cpp: the operators that tests/deferred/operator_walk_test.cpp has seen to be
// right.
#include "deferred/recordable.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <string>

#include "deferred/delayed_tensors.h"
#include "deferred/operator_hook.h"

namespace smp::deferred {
namespace {

// Each stands for its overloads and its form in place; but those that are given their output stand
// here with the overload.
constexpr std::string_view kMaking =
    "arange empty empty_like empty_permuted empty_strided eye eye.m_out full full_like linspace "
    "logspace "
    "new_empty new_empty_strided new_full new_ones new_zeros normal.float_float ones ones_like "
    "rand "
    "rand_like randint randint_like randn randn_like randperm range scalar_tensor zeros zeros_like";
constexpr std::string_view kFilling =
    "bernoulli_.float cauchy_ copy copy_ exponential_ fill fill_ geometric_ log_normal_ normal_ "
    "random_ uniform_ zero zero_";
constexpr std::string_view kCopying =
    "_conj _neg_view _reshape_alias _to_copy block_diag broadcast_tensors cat clone column_stack "
    "concat concatenate "
    "constant_pad_nd diag diag_embed diagflat dstack flip fliplr flipud hstack kron lift "
    "lift_fresh "
    "masked_fill meshgrid pad pixel_shuffle pixel_unshuffle repeat roll rot90 row_stack stack tile "
    "tril triu type_as vstack where";
/// Those that LibTorch calls pointwise are taken as well.
constexpr std::string_view kPointwise = "cumprod cumsum fmax fmin masked_fill prelu relu6 rsub";
constexpr std::string_view kReducing =
    "all amax amin any argmax argmin linalg_vector_norm logsumexp max mean min nansum norm prod "
    "std std_mean sum var var_mean";
constexpr std::string_view kMatrices =
    "addbmm addmm addmv addr baddbmm bmm dot einsum ger inner linalg_qr linear matmul mm mv outer "
    "tensordot vdot";
/// In which an index may be out of range.
constexpr std::string_view kIndexing =
    "embedding gather index index_add index_copy index_fill index_put index_select scatter "
    "scatter_add take";
constexpr std::string_view kLayers =
    "_softmax _log_softmax adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d "
    "adaptive_max_pool1d adaptive_max_pool2d alpha_dropout avg_pool1d avg_pool2d avg_pool3d "
    "batch_norm bilinear conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d "
    "convolution dropout feature_alpha_dropout feature_dropout glu group_norm gru gru_cell "
    "instance_norm layer_norm log_sigmoid log_softmax lstm lstm_cell max_pool1d max_pool2d "
    "max_pool3d mse_loss native_dropout reflection_pad1d "
    "reflection_pad2d replication_pad1d replication_pad2d rms_norm rnn_relu rnn_relu_cell rnn_tanh "
    "rnn_tanh_cell scaled_dot_product_attention softmax upsample_bilinear2d upsample_nearest1d "
    "upsample_nearest2d";
/// In place, of shapes and strides alone.
constexpr std::string_view kReshaping =
    "detach_ squeeze_ swapaxes_ swapdims_ t_ transpose_ unsqueeze_";
/// About types and shapes.
constexpr std::string_view kAsking =
    "_has_compatible_shallow_copy_type _has_same_storage_numel _version can_cast dim is_complex "
    "is_conj is_floating_point is_inference is_leaf is_neg is_same_size is_set_to is_signed numel "
    "output_nr promote_types result_type size storage_offset stride sym_numel sym_size "
    "sym_storage_offset sym_stride";

/// Which operands the kernels take that shapes alone do not ask about.
enum class Types {
  kAny,
  kFloating,     ///< none of the others: float, double, bfloat16 and half
  kOneFloating,  ///< the same of all, but for indices
};

struct Group {
  std::string_view names;
  Types types;
};

constexpr std::array kGroups{
    Group{kMaking, Types::kAny},           Group{kFilling, Types::kAny},
    Group{kCopying, Types::kAny},          Group{kReshaping, Types::kAny},
    Group{kAsking, Types::kAny},           Group{kPointwise, Types::kFloating},
    Group{kReducing, Types::kFloating},    Group{kMatrices, Types::kOneFloating},
    Group{kIndexing, Types::kOneFloating}, Group{kLayers, Types::kOneFloating}};

const std::map<std::string_view, Types>& known_operators() {
  static const auto all = [] {
    std::map<std::string_view, Types> names;
    for (auto [text, types] : kGroups) {
      while (!text.empty()) {
        const auto end = std::min(text.find(' '), text.size());
        names.emplace(text.substr(0, end), types);
        text.remove_prefix(std::min(end + 1, text.size()));
      }
    }
    return names;
  }();
  return all;
}

std::optional<Types> find(std::string_view name) {
  const auto found = known_operators().find(name);
  return found == known_operators().end() ? std::nullopt : std::optional(found->second);
}

/// Returns the name without "aten::"; nothing for operators of others.
std::string_view own_name(const c10::OperatorHandle& op) {
  constexpr std::string_view kNamespace = "aten::";
  const std::string_view name = op.schema().name();
  return name.substr(0, kNamespace.size()) == kNamespace ? name.substr(kNamespace.size()) : "";
}

std::optional<Types> find_with_overload(const c10::OperatorHandle& op, std::string_view name) {
  const auto& overload = op.schema().overload_name();
  return overload.empty() ? std::nullopt : find(std::string(name) + "." + overload);
}

/// Also finds `name` if it is the form in place of a known one.
std::optional<Types> find_in_any_form(std::string_view name) {
  if (const auto found = find(name)) return found;
  const bool in_place = name.size() > 1 && name.back() == '_' && name[name.size() - 2] != '_';
  return in_place ? find(name.substr(0, name.size() - 1)) : std::nullopt;
}

bool returns_a_view(const c10::FunctionSchema& schema) {
  return std::any_of(schema.returns().begin(), schema.returns().end(), [](const auto& result) {
    return result.alias_info() != nullptr && !result.alias_info()->isWrite();
  });
}

/// True if a result may be a view of a tensor that has values.
bool may_view_values(const c10::OperatorHandle& op, std::string_view name,
                     const torch::jit::Stack& stack) {
  // Types of storages differ as well, of which shapes know nothing.
  const bool unsaid = name == "broadcast_tensors" || name == "meshgrid" || name == "type_as" ||
                      name == "_has_compatible_shallow_copy_type";
  const auto& arguments = op.schema().arguments();
  const auto first = first_argument(op, stack);
  bool any = false;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const auto* alias = arguments[i].alias_info();
    if (!unsaid && (alias == nullptr || alias->isWrite())) continue;
    stack[first + i].visit([&](const c10::IValue& value) {
      any =
          any || (value.isTensor() && value.toTensor().defined() && !is_delayed(value.toTensor()));
      return false;
    });
  }
  return any;
}

bool is_written_into(const c10::FunctionSchema& schema) {
  return std::any_of(schema.arguments().begin(), schema.arguments().end(),
                     [](const auto& argument) { return argument.is_out(); });
}

/// True if recipes know how to hold `tensor`.
bool is_plain(const at::Tensor& tensor) {
  return tensor.layout() == at::kStrided && !tensor.is_quantized() && !tensor.is_nested() &&
         tensor.has_storage() && (tensor.is_cpu() || is_delayed(tensor));
}

bool is_plain(const c10::Argument& argument, const c10::IValue& value) {
  if (value.isNone()) return true;
  if (argument.name() == "layout") return value.toLayout() == at::kStrided;
  if (argument.name() == "pin_memory") return !value.toBool();
  if (argument.name() == "dtype") return !at::isQIntType(value.toScalarType());
  if (value.isGenerator()) return value.toGenerator().device().is_cpu();
  return !value.isStorage();
}

bool are_plain(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  const auto& arguments = op.schema().arguments();
  const auto first = first_argument(op, stack);
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (!is_plain(arguments[i], stack[first + i])) return false;
  }
  bool plain = true;
  const bool graph = at::GradMode::is_enabled();
  visit_arguments(op, stack, [&](const at::Tensor& tensor) {
    // The graph of a recipe's shapes would lack what is real.
    plain = plain && is_plain(tensor) && (is_delayed(tensor) || !graph || !tensor.requires_grad());
  });
  return plain;
}

/// Returns the types that `op` may be put off with, or nothing if it may not.
std::optional<Types> types_of(const c10::OperatorHandle& op, std::string_view name) {
  if (const auto found = find_with_overload(op, name)) return found;
  if (is_written_into(op.schema())) return std::nullopt;
  if (const auto found = find_in_any_form(name)) return found;
  if (name[0] == '_') return std::nullopt;  // __lshift__(), _autocast_to_reduced_precision()
  if (returns_a_view(op.schema())) return Types::kAny;
  const bool pointwise = op.hasTag(at::Tag::pointwise) && !asks(op);  // not equal()
  return pointwise ? std::optional(Types::kFloating) : std::nullopt;
}

/// True if the tensors among the arguments are of such types.
bool have(Types types, const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  if (types == Types::kAny) return true;
  bool all = true;
  std::optional<at::ScalarType> one;
  visit_arguments(op, stack, [&](const at::Tensor& tensor) {
    if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) return;
    const auto type = tensor.scalar_type();
    if (types == Types::kOneFloating && type == at::kLong) return;  // an index
    all = all &&
          (type == at::kFloat || type == at::kDouble || type == at::kBFloat16 || type == at::kHalf);
    if (types == Types::kOneFloating) all = all && one.value_or(type) == type;
    one = type;
  });
  return all && (types == Types::kFloating || one);
}

}  // namespace

std::vector<std::string_view> recordable_names() {
  std::vector<std::string_view> names;
  for (const auto& [name, types] : known_operators()) names.push_back(name);
  return names;
}

bool is_recordable(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  const auto name = own_name(op);
  if (name.empty()) return false;
  const auto types = types_of(op, name);
  if (!types || !have(*types, op, stack) || may_view_values(op, name, stack)) return false;
  return !at::autocast::is_autocast_enabled(at::kCPU) && are_plain(op, stack);
}

std::vector<at::Tensor> written_unsaid(const c10::OperatorHandle& op,
                                       const torch::jit::Stack& stack) {
  std::vector<at::Tensor> written;
  const auto name = own_name(op);
  if (name != "batch_norm" && name != "instance_norm") return written;
  for (const char* argument : {"running_mean", "running_var"}) {
    const auto index = op.schema().argumentIndexWithName(argument);
    const auto& value = stack[first_argument(op, stack) + static_cast<std::size_t>(*index)];
    if (value.isTensor() && value.toTensor().defined()) written.push_back(value.toTensor());
  }
  return written;
}

bool ignores_first_values(const c10::OperatorHandle& op) {
  static constexpr std::array<std::string_view, 22> kNames{
      "bernoulli_", "cauchy_",    "copy_",       "empty_like", "exponential_",      "fill_",
      "full_like",  "geometric_", "log_normal_", "new_empty",  "new_empty_strided", "new_full",
      "new_ones",   "new_zeros",  "normal_",     "ones_like",  "rand_like",         "randint_like",
      "randn_like", "random_",    "uniform_",    "zero_"};
  const auto name = own_name(op);
  return std::find(kNames.begin(), kNames.end(), name) != kNames.end() || name == "zeros_like";
}

bool asks_for_shapes_of_others(const c10::OperatorHandle& op) {
  const auto name = own_name(op);
  return name == "_has_compatible_shallow_copy_type" || name == "expand_as" ||
         name == "reshape_as" || name == "slice_inverse" || name == "type_as" ||
         name == "view_as" || (name == "to" && op.schema().overload_name() == "other");
}

}  // namespace smp::deferred
