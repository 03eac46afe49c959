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

void set_value(const torch::nn::Module& module, const std::string& name,
               const at::Tensor& parameter, const at::Tensor& value) {
  SMP_REQUIRE(value.sizes() == parameter.sizes(), module.name(), ": value for parameter '", name,
              "' is ", value.sizes(), ", expected ", parameter.sizes());
  parameter.set_data(value.detach().clone());
}

void set_values_of(torch::nn::Module& module, const std::string& path, const Values& values) {
  auto* const distributed = dynamic_cast<DistributedModule*>(&module);
  for (const auto& item : module.named_parameters(/*recurse=*/false)) {
    const auto& value = values.at(path_below(path, item.key()));
    if (distributed != nullptr && distributed->slice_dim(item.key())) {
      distributed->set_whole(item.key(), value);
    } else {
      set_value(module, item.key(), item.value(), value);
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
  set_values_of(module, "", values);
}

}  // namespace smp
