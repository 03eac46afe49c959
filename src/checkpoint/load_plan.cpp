// checkpoint/load_plan.cpp: names first, then shapes and dtypes; all complaints in one text.
#include "checkpoint/load_plan.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>

#include <unordered_map>

#include "base/check.h"
#include "base/log.h"
#include "base/text/excerpt.h"
#include "checkpoint/first_difference.h"
#include "checkpoint/names.h"
#include "d2d/tensors/overlap.h"
#include "d2d/tensors/tensor_data.h"

namespace smp::checkpoints {
namespace {

/// Returns, for each of the names of `tensor` that `offer` has, its number there.
std::vector<std::size_t> offered_names(const NamedTensor& tensor,
                                       const std::unordered_map<std::string, std::size_t>& places) {
  std::vector<std::size_t> numbers;
  for (const auto& name : tensor.names) {
    const auto found = places.find(name);
    if (found != places.end()) numbers.push_back(found->second);
  }
  return numbers;
}

std::unordered_map<std::string, std::size_t> places_of(const std::vector<TensorInfo>& offered) {
  std::unordered_map<std::string, std::size_t> places;
  for (std::size_t i = 0; i < offered.size(); ++i) places.emplace(offered[i].name, i);
  return places;
}

void add_list(std::string& text, const char* title, const std::vector<std::string>& names) {
  if (names.empty()) return;
  text += base::concat("\n  ", title, ": ");
  for (std::size_t i = 0; i < names.size(); ++i) {
    text += (i > 0 ? ", " : "") + base::excerpt(names[i]);
  }
}

std::string mismatch(const TensorInfo& model, const TensorInfo& offered) {
  if (model.sizes != offered.sizes) {
    return base::concat("shape of ", base::excerpt(offered.name), ": ",
                        c10::IntArrayRef(offered.sizes), ", but the model has ",
                        c10::IntArrayRef(model.sizes));
  }
  // LibTorch casts no packed types, whatever canCast() says.
  const bool packed = offered.dtype == c10::ScalarType::Float4_e2m1fn_x2 ||
                      model.dtype == c10::ScalarType::Float4_e2m1fn_x2;
  if (packed ? offered.dtype != model.dtype : !c10::canCast(offered.dtype, model.dtype)) {
    return base::concat("dtype of ", base::excerpt(offered.name), ": ", offered.dtype,
                        ", but the model has ", model.dtype, ", which cannot hold it");
  }
  return {};
}

}  // namespace

LoadPlan plan_load(const std::vector<NamedTensor>& tensors, const std::vector<TensorInfo>& offered,
                   bool strict, const std::string& source) {
  const auto places = places_of(offered);
  LoadPlan plan;
  std::vector<bool> used(offered.size());
  std::vector<std::string> mismatches;
  for (const auto& named : tensors) {
    const auto numbers = offered_names(named, places);
    for (const std::size_t i : numbers) {
      used[i] = true;
      auto wrong = mismatch(TensorInfo::of(offered[i].name, named.tensor), offered[i]);
      if (!wrong.empty()) mismatches.push_back(std::move(wrong));
    }
    if (numbers.empty()) plan.result.missing_keys.push_back(named.names.front());
    plan.sources.push_back(numbers.empty() ? std::nullopt : std::optional(numbers.back()));
    plan.names.push_back(numbers);
  }
  for (std::size_t i = 0; i < offered.size(); ++i) {
    if (!used[i]) plan.result.unexpected_keys.push_back(offered[i].name);
  }
  std::string hint;
  if (!plan.result.unexpected_keys.empty()) hint = name_hint(tensors, offered);
  std::string complaints;
  for (const auto& text : mismatches) complaints += "\n  " + text;
  if (strict) {
    add_list(complaints, "missing", plan.result.missing_keys);
    add_list(complaints, "unexpected", plan.result.unexpected_keys);
  }
  const bool lists = !plan.result.missing_keys.empty() || !plan.result.unexpected_keys.empty();
  SMP_REQUIRE(complaints.empty(), source, " does not fit the model; nothing was loaded.",
              complaints, hint,
              strict && lists && hint.empty()
                  ? "\nIf missing and unexpected names are as they should be, load with strict = "
                    "false"
                  : "");
  if (!hint.empty()) {
    base::log(base::LogLevel::kWarning, source, ": some of its names are none of the model's.",
              hint);
  }
  return plan;
}

namespace {

/// Tensors of one type that become another.
struct Narrowed {
  c10::ScalarType from, to;
  std::string first;  ///< name of one
  std::size_t count = 0;
};

std::string loss_in(c10::ScalarType type) {
  switch (type) {
    case c10::ScalarType::Half:
      return "rounded by up to 1/2048 of themselves; beyond 65504 they become infinite, below "
             "3e-08 0";
    case c10::ScalarType::BFloat16:
      return "rounded by up to 1/256 of themselves";
    case c10::ScalarType::Float:
      return "rounded by up to 6e-08 of themselves";
    default:
      return "cut to what that type has";
  }
}

std::vector<Narrowed> find_narrowed(const std::vector<NamedTensor>& tensors,
                                    const std::vector<TensorInfo>& offered, const LoadPlan& plan) {
  std::vector<Narrowed> all;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (!plan.sources[i]) continue;
    const auto from = offered[*plan.sources[i]].dtype, to = tensors[i].tensor.scalar_type();
    if (!holds_less(to, from)) continue;
    auto same = all.begin();
    while (same != all.end() && (same->from != from || same->to != to)) ++same;
    if (same == all.end()) same = all.insert(same, {from, to, tensors[i].names[0]});
    ++same->count;
  }
  return all;
}

}  // namespace

bool holds_less(c10::ScalarType type, c10::ScalarType other) {
  // LibTorch does not compare these.
  const auto is_odd = [](c10::ScalarType one) {
    return c10::isFloat8Type(one) || c10::isBarebonesUnsignedType(one) ||
           one == c10::ScalarType::Float4_e2m1fn_x2;
  };
  if (type == other) return false;
  if (is_odd(type) || is_odd(other)) return c10::elementSize(type) < c10::elementSize(other);
  return c10::promoteTypes(type, other) != type;
}

void warn_of_narrowing(const std::vector<NamedTensor>& tensors,
                       const std::vector<TensorInfo>& offered, const LoadPlan& plan,
                       const std::string& source) {
  std::string text;
  for (const auto& [from, to, first, count] : find_narrowed(tensors, offered, plan)) {
    const bool one = count == 1;
    text += base::concat(text.empty() ? "" : "; ", count, one ? " tensor" : " tensors", " of ",
                         from, one ? " becomes " : " become ", to, one ? " (" : " (the first is ",
                         first, "): numbers are ", loss_in(to));
  }
  if (!text.empty()) base::log(base::LogLevel::kWarning, source, ": ", text);
}

std::string problem_with_values(const std::string& name, const at::Tensor& tensor) {
  if (tensor.layout() != at::kStrided || tensor.is_quantized() || tensor.is_nested()) {
    return base::concat(name, " is no dense tensor; convert it with to_dense()");
  }
  if (tensor.is_meta()) return base::concat(name, " is a meta tensor, which has no values");
  return {};
}

std::string problem_with_target(const std::string& name, const at::Tensor& tensor) {
  if (tensor.layout() != at::kStrided || tensor.is_quantized() || tensor.is_nested()) {
    return base::concat(name, " of the model is no dense tensor, so nothing can be loaded into it");
  }
  if (tensor.is_meta()) {
    return base::concat(name,
                        " of the model is a meta tensor, which has no memory for values; build it "
                        "on a device, or under smp::delay_param_initialization");
  }
  if (tensor.is_inference() && !c10::InferenceMode::is_enabled()) {
    return base::concat(name,
                        " of the model was made in inference mode, and LibTorch writes it nowhere "
                        "else; build the model outside of that mode");
  }
  if (tensor.has_storage() && tensor.numel() > 0) {
    auto last = tensor.storage_offset();
    for (std::int64_t d = 0; d < tensor.dim(); ++d) last += (tensor.size(d) - 1) * tensor.stride(d);
    const auto needed = static_cast<std::size_t>(last + 1) * tensor.element_size();
    if (tensor.storage().nbytes() < needed) {
      return base::concat(name, " of the model has lost its memory: ", tensor.storage().nbytes(),
                          " bytes are left of ", needed);
    }
  }
  return {};
}

namespace {

/// Returns what would be in `tensor` after `values` were stored there.
at::Tensor as_stored(const at::Tensor& tensor, const at::Tensor& values) {
  std::int64_t elements = 1;
  for (std::int64_t d = 0; d < tensor.dim(); ++d)
    elements += (tensor.size(d) - 1) * tensor.stride(d);
  const auto stored =
      at::empty({elements}, at::TensorOptions(tensor.scalar_type()).device(at::kCPU))
          .as_strided(tensor.sizes(), tensor.strides());
  store(stored, values);
  return stored;
}

}  // namespace

std::string problem_with_repeats(const std::vector<NamedTensor>& tensors, const Offer& offer) {
  const auto places = places_of(offer.tensors);
  for (const auto& named : tensors) {
    const auto& tensor = named.tensor;
    if (tensor.layout() != at::kStrided || !d2d::overlaps(tensor)) continue;
    for (const std::size_t i : offered_names(named, places)) {
      const auto& info = offer.tensors[i];
      if (!mismatch(TensorInfo::of(info.name, tensor), info).empty()) continue;  // told elsewhere
      const auto values = offer.read(i);
      const auto found = first_difference(values, as_stored(tensor, values), tensor.scalar_type());
      if (!found) continue;
      return base::concat(
          info.name, ": the model's tensor of shape ", tensor.sizes(), " and strides ",
          tensor.strides(),
          " is expanded: several of its elements share memory, and the values that they would get "
          "differ (element ",
          c10::IntArrayRef(found->place), " is ", found->first, ", and would be ", found->second,
          "); nothing was loaded. Register a copy of the whole (tensor.contiguous()), or give "
          "values that repeat");
    }
  }
  return {};
}

std::string problem_with_ties(const std::vector<NamedTensor>& tensors, const Offer& offer) {
  const auto places = places_of(offer.tensors);
  for (const auto& named : tensors) {
    const auto numbers = offered_names(named, places);
    for (std::size_t k = 1; k < numbers.size(); ++k) {
      const auto& first = offer.tensors[numbers[0]];
      const auto& other = offer.tensors[numbers[k]];
      if (first.sizes != other.sizes) continue;  // told elsewhere
      const auto found = first_difference(offer.read(numbers[0]), offer.read(numbers[k]),
                                          named.tensor.scalar_type());
      if (!found) continue;
      return two_values_text(
          first.name, other.name,
          base::concat("element ", c10::IntArrayRef(found->place), " is ", found->first, " in ",
                       first.name, " and ", found->second, " in ", other.name));
    }
  }
  return {};
}

std::string two_values_text(const std::string& name, const std::string& other,
                            const std::string& difference) {
  return base::concat("the model has one tensor under the names ", name, " and ", other,
                      ", but there are different values for them: ", difference,
                      "; nothing was loaded. Untie the model's parameters, or load with strict = "
                      "false, where the last one counts");
}

at::Tensor memory_for(const TensorInfo& info, const at::Tensor& tensor) {
  const bool fits = tensor.layout() == at::kStrided && tensor.is_cpu() &&
                    tensor.sizes() == info.sizes && d2d::is_plain(tensor);
  if (!fits) return {};
  if (!tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
  return d2d::detached(tensor);
}

void load_offered(const at::Tensor& tensor, const Offer& offer, std::size_t number) {
  const auto memory = offer.read_into ? memory_for(offer.tensors[number], tensor) : at::Tensor();
  if (memory.defined()) return offer.read_into(number, memory);
  store(tensor, offer.read(number));
}

void store(const at::Tensor& tensor, const at::Tensor& values) {
  const at::NoGradGuard no_grad;
  auto target = d2d::unrepeated(tensor, tensor);
  target.copy_(d2d::unrepeated(tensor, values));
}

}  // namespace smp::checkpoints
