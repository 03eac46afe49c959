// tp/slices/joined_product.h: several projections of one input as one product.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <vector>

namespace smp::tp {

/// Returns at::linear(x, W, bias) of weights W that stand one below the other. For backward x is
/// kept, and the weights themselves; the matrix of all of them is made anew where it is multiplied.
/// (Under autocast it is kept, in the type of 16 bits.)
/// @param x        [.., I]
/// @param weights  at least one, [n, I] each
/// @param bias     [sum of n]; undefined: none
/// @return [.., sum of n]
at::Tensor joined_product(const at::Tensor& x, const std::vector<at::Tensor>& weights,
                          const at::Tensor& bias);

/// What a product has multiplied, if it need not keep that itself: who keeps it, or knows where to
/// get it, puts it here before the product's backward runs, which takes it out.
struct MultipliedInput : torch::CustomClassHolder {
  at::Tensor value;
};

/// Does the same, without keeping x. @param input  empty
at::Tensor joined_product(const at::Tensor& x, const std::vector<at::Tensor>& weights,
                          const at::Tensor& bias, const c10::intrusive_ptr<MultipliedInput>& input);

}  // namespace smp::tp
