// tp/group/used_in_part.cpp: whole parameters of which each rank uses a part.

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "smp/tp/batch_primitives.h"
#include "tp/group/tensor_parallel.h"

namespace smp {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct MultipliedGradient : torch::autograd::Function<MultipliedGradient> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& tensor,
                            std::int64_t factor) {
    context->saved_data["factor"] = factor;
    return tensor.view_as(tensor);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    return {gradients[0] * context->saved_data["factor"].toInt(), at::Tensor()};
  }
};

}  // namespace

at::Tensor used_in_part_for_tp(const at::Tensor& parameter) {
  const auto& group = tp::TensorParallel::current();
  return group.same_batch() ? MultipliedGradient::apply(parameter, std::int64_t{group.size()})
                            : parameter;
}

}  // namespace smp
