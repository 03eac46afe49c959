// fuzz/optimizers.h: the optimizer of a program, for both.
#pragma once

#include <torch/torch.h>

#include <memory>
#include <vector>

#include "api/optimizer/user_steps.h"
#include "fuzz/program.h"

namespace smp::fuzz {

using OptimizerPtr = std::unique_ptr<torch::optim::Optimizer>;

/// Every other one is in the second group, if there are two.
inline std::vector<at::Tensor> of_group(const Program& program,
                                        const std::vector<at::Tensor>& parameters, int group) {
  std::vector<at::Tensor> own;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (!program.groups || static_cast<int>(i % 2) == group) own.push_back(parameters[i]);
  }
  return own;
}

inline torch::optim::OptimizerParamGroup group_of(const Program& program,
                                                  const std::vector<at::Tensor>& parameters,
                                                  int group) {
  const double lr = group == 0 ? 0.05 : 0.02;
  std::unique_ptr<torch::optim::OptimizerOptions> options;
  if (program.steps_by_itself < 0) {
    options = std::make_unique<torch::optim::SGDOptions>(
        torch::optim::SGDOptions(lr).momentum(group == 0 ? 0.9 : 0.5));
  } else {
    options = std::make_unique<torch::optim::AdamWOptions>(lr);
  }
  return {of_group(program, parameters, group), std::move(options)};
}

/// Makes one over the parameters of one model. @param groups  that it has, in their order
inline OptimizerPtr make_optimizer(const Program& program,
                                   const std::vector<at::Tensor>& parameters,
                                   const std::vector<int>& groups) {
  std::vector<torch::optim::OptimizerParamGroup> made;
  for (const int group : groups) made.push_back(group_of(program, parameters, group));
  if (program.steps_by_itself < 0) {
    return std::make_unique<torch::optim::SGD>(made, torch::optim::SGDOptions(0.05));
  }
  return std::make_unique<user_steps::UserOptimizer>(
      made, static_cast<user_steps::UserStep>(program.steps_by_itself));
}

/// The groups that it is made with.
inline std::vector<int> first_groups(const Program& program) {
  return program.groups && !program.joins ? std::vector<int>{0, 1} : std::vector<int>{0};
}

}  // namespace smp::fuzz
