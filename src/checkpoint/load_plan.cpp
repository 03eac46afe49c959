// checkpoint/load_plan.cpp: names first, then shapes and dtypes; all complaints in one text.
#include "checkpoint/load_plan.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <unordered_map>

#include "base/check.h"

namespace smp::checkpoint {
namespace {

void add_list(std::string& text, const char* title, const std::vector<std::string>& names) {
  if (names.empty()) return;
  text += base::concat("\n  ", title, ": ");
  for (std::size_t i = 0; i < names.size(); ++i) text += (i > 0 ? ", " : "") + names[i];
}

std::string mismatch(const TensorInfo& model, const TensorInfo& offered) {
  if (model.sizes != offered.sizes) {
    return base::concat("shape of ", offered.name, ": ", c10::IntArrayRef(offered.sizes),
                        ", but the model has ", c10::IntArrayRef(model.sizes));
  }
  if (!c10::canCast(offered.dtype, model.dtype)) {
    return base::concat("dtype of ", offered.name, ": ", offered.dtype, ", but the model has ",
                        model.dtype, ", which cannot hold it");
  }
  return {};
}

}  // namespace

LoadPlan plan_load(const std::vector<NamedTensor>& tensors, const std::vector<TensorInfo>& offered,
                   bool strict, const std::string& source) {
  std::unordered_map<std::string, std::size_t> place;
  for (std::size_t i = 0; i < offered.size(); ++i) place.emplace(offered[i].name, i);
  LoadPlan plan;
  std::vector<bool> used(offered.size());
  std::vector<std::string> mismatches;
  for (const auto& [tensor, names] : tensors) {
    std::optional<std::size_t> source;
    for (const auto& name : names) {
      const auto found = place.find(name);
      if (found == place.end()) continue;
      source = found->second;
      used[found->second] = true;
      auto wrong = mismatch(TensorInfo::of(name, tensor), offered[found->second]);
      if (!wrong.empty()) mismatches.push_back(std::move(wrong));
    }
    if (!source) plan.result.missing_keys.push_back(names.front());
    plan.sources.push_back(source);
  }
  for (std::size_t i = 0; i < offered.size(); ++i) {
    if (!used[i]) plan.result.unexpected_keys.push_back(offered[i].name);
  }
  std::string complaints;
  for (const auto& text : mismatches) complaints += "\n  " + text;
  if (strict) {
    add_list(complaints, "missing", plan.result.missing_keys);
    add_list(complaints, "unexpected", plan.result.unexpected_keys);
  }
  SMP_REQUIRE(
      complaints.empty(), source, " does not fit the model; nothing was loaded.", complaints,
      strict ? "\nIf missing and unexpected names are as they should be, load with strict = "
               "false"
             : "");
  return plan;
}

std::string problem_with(const std::vector<NamedTensor>& tensors, const StateDict& dict,
                         bool strict) {
  for (const auto& [name, tensor] : dict) {
    if (tensor.layout() != at::kStrided || tensor.is_quantized()) {
      return base::concat(name, " is no dense tensor; convert it with to_dense()");
    }
    if (tensor.is_meta()) return base::concat(name, " is a meta tensor, which has no values");
  }
  if (!strict) return {};
  for (const auto& [tensor, names] : tensors) {
    const at::Tensor* first = nullptr;
    const std::string* first_name = nullptr;
    for (const auto& name : names) {
      if (!dict.contains(name)) continue;
      const auto& values = dict.at(name);
      if (first == nullptr) {
        first = &values;
        first_name = &name;
      } else if (!values.is_same(*first) && first->sizes() == values.sizes() &&
                 !at::equal(first->to(values.options()), values)) {
        return base::concat("the model has one tensor under the names ", *first_name, " and ", name,
                            ", but there are different values for "
                            "them. Untie the model's parameters, or load with strict = false, "
                            "where the last one counts");
      }
    }
  }
  return {};
}

void store(const at::Tensor& tensor, const at::Tensor& values) {
  at::NoGradGuard no_grad;
  at::Tensor target = tensor;
  target.copy_(values);
}

}  // namespace smp::checkpoint
