// tp/replacement/whole_values.cpp: weights of an undistributed module for a distributed one.
#include <ATen/ATen.h>
#include <torch/nn/module.h>

#include "base/check.h"
#include "module/path_below.h"
#include "smp/tp/replacement.h"

namespace smp {
namespace {

using Values = std::map<std::string, at::Tensor>;

std::string names_of(const Values& values) {
  std::string names;
  for (const auto& [name, value] : values) names += " '" + name + "'";
  return values.empty() ? " none" : names;
}

void require_sizes(torch::nn::Module& module, const std::string& path, const Values& values) {
  const auto* const distributed = dynamic_cast<DistributedModule*>(&module);
  for (const auto& item : module.named_parameters(/*recurse=*/false)) {
    const auto& value = values.at(path_below(path, item.key()));
    auto expected = item.value().sizes().vec();
    const bool cut = distributed != nullptr && distributed->slice_dim(item.key());
    if (cut) {
      const auto& [dim, whole] = distributed->sliced().at(item.key());
      expected[static_cast<std::size_t>(dim)] = whole;
    }
    SMP_REQUIRE(value.sizes() == at::IntArrayRef(expected), module.name(),
                ": value for parameter '", path_below(path, item.key()), "' is ", value.sizes(),
                ", expected ", cut ? "the whole, " : "", at::IntArrayRef(expected));
  }
  for (const auto& child : module.named_children()) {
    require_sizes(*child.value(), path_below(path, child.key()), values);
  }
}

void set_values_of(torch::nn::Module& module, const std::string& path, const Values& values) {
  auto* const distributed = dynamic_cast<DistributedModule*>(&module);
  for (const auto& item : module.named_parameters(/*recurse=*/false)) {
    const auto& value = values.at(path_below(path, item.key()));
    if (distributed != nullptr && distributed->slice_dim(item.key())) {
      distributed->set_whole(item.key(), value);
    } else {
      item.value().set_data(value.detach().clone());
    }
  }
  for (const auto& child : module.named_children()) {
    set_values_of(*child.value(), path_below(path, child.key()), values);
  }
}

}  // namespace

void set_whole_values(torch::nn::Module& module, const Values& values) {
  const auto parameters = module.named_parameters();
  for (const auto& item : parameters) {
    const auto found = values.find(item.key());
    SMP_REQUIRE(found != values.end() && found->second.defined(), "set_whole_values of ",
                module.name(), ": no value for parameter '", item.key(), "'; given are",
                names_of(values));
  }
  for (const auto& [name, value] : values) {
    SMP_REQUIRE(parameters.contains(name), "set_whole_values of ", module.name(), ": parameter '",
                name, "' is none of its own; leave it out");
  }
  require_sizes(module, "", values);
  set_values_of(module, "", values);
}

}  // namespace smp
