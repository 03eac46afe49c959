// module/replace_contents.cpp: see the header.
#include "module/replace_contents.h"

#include <ATen/ATen.h>
#include <torch/nn/cloneable.h>

#include <unordered_set>

#include "module/replace_data.h"

namespace smp::module {
namespace {

struct ContentsAccess;

/// Frees the values and gradients of parameters that are no longer part of a model.
void drop_values(const torch::nn::Module& module, const torch::nn::Module& kept) {
  std::unordered_set<const void*> wanted;
  for (const auto& tensor : kept.parameters()) wanted.insert(tensor.unsafeGetTensorImpl());
  for (const auto& tensor : module.parameters()) {
    if (wanted.count(tensor.unsafeGetTensorImpl()) != 0) continue;
    tensor.mutable_grad().reset();
    replace_data(tensor, at::empty({0}, tensor.options()));
  }
}

}  // namespace
}  // namespace smp::module

/// torch::nn::Module befriends every Cloneable<T>; this one may set what it holds.
template <>
class torch::nn::Cloneable<smp::module::ContentsAccess> {
 public:
  static void take(Module& module, const Module& by) {
    module.parameters_ = by.parameters_;
    module.buffers_ = by.buffers_;
    module.children_ = by.children_;
  }
};

namespace smp::module {

void replace_contents(torch::nn::Module& module, const torch::nn::Module& by) {
  drop_values(module, by);
  torch::nn::Cloneable<ContentsAccess>::take(module, by);
}

}  // namespace smp::module
