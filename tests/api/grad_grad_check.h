// Second derivatives against finite differences, as PyTorch's gradgradcheck() compares them.
#pragma once

#include <gtest/gtest.h>
#include <torch/types.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

#include "smp/grad.h"

namespace smp {

/// A function of tensors of doubles, [..] each, and its gradients by them.
class GradGradCheck {
 public:
  using Tensors = std::vector<at::Tensor>;
  using Function = std::function<at::Tensor(const Tensors&)>;

  /// Compares the derivatives of the gradients, by the inputs and by what was given for the result,
  /// with central differences of these gradients. In the body of a step or in a module; where ranks
  /// meet in `function`, all of them make the check, with inputs of the same shapes.
  static void run(const Function& function, const Tensors& inputs) {
    const GradGradCheck check(function);
    auto arguments = leaves_of(inputs);
    const auto y = function(arguments).detach();
    arguments.push_back((at::arange(y.numel(), at::kDouble) * 0.7 + 0.3).cos().view(y.sizes()));
    const auto found = check.derivatives(arguments);
    for (std::size_t a = 0; a < arguments.size(); ++a) {
      for (std::int64_t i = 0; i < arguments[a].numel(); ++i) {
        const auto expected = check.difference(arguments, a, i);
        EXPECT_TRUE(at::allclose(found[a].select(1, i), expected, 1e-6, 1e-7))
            << "by element " << i << " of argument " << a << ": " << found[a].select(1, i)
            << expected;
      }
    }
  }

 private:
  explicit GradGradCheck(const Function& function) : function_(function) {}

  static Tensors leaves_of(const Tensors& tensors) {
    Tensors leaves;
    for (const auto& tensor : tensors) leaves.push_back(tensor.detach().clone().requires_grad_());
    return leaves;
  }

  /// Returns the gradients one after the other. @param arguments  the inputs, and what is given for
  /// the result
  at::Tensor gradients(const Tensors& arguments, bool create_graph) const {
    const Tensors inputs(arguments.begin(), arguments.end() - 1);
    Tensors parts;
    for (const auto& part :
         smp::grad({function_(inputs)}, inputs, {arguments.back()}, create_graph, create_graph)) {
      parts.push_back(part.flatten());
    }
    return at::cat(parts);
  }

  /// Returns the derivatives of all gradients by each argument: [gradients, elements].
  Tensors derivatives(const Tensors& values) const {
    const auto arguments = leaves_of(values);
    const auto all = gradients(arguments, /*create_graph=*/true);
    std::vector<Tensors> rows(arguments.size());
    for (std::int64_t k = 0; k < all.numel(); ++k) {
      const auto row = smp::grad({all[k]}, arguments, {}, /*retain_graph=*/true,
                                 /*create_graph=*/false, /*allow_unused=*/true);
      for (std::size_t a = 0; a < row.size(); ++a) {
        rows[a].push_back((row[a].defined() ? row[a] : at::zeros_like(arguments[a])).flatten());
      }
    }
    Tensors stacked;
    for (const auto& of_argument : rows) stacked.push_back(at::stack(of_argument));
    return stacked;
  }

  at::Tensor difference(const Tensors& arguments, std::size_t which, std::int64_t element) const {
    constexpr double kStep = 1e-5;
    const auto moved = [&](double by) {
      auto leaves = leaves_of(arguments);
      leaves[which].data().view({-1})[element] += by;
      return gradients(leaves, /*create_graph=*/false);
    };
    return (moved(kStep) - moved(-kStep)) / (2 * kStep);
  }

  const Function& function_;
};

}  // namespace smp
