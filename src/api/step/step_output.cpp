// api/step/step_output.cpp: the outputs of a step's microbatches as one tensor.
#include "smp/step_output.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "base/check.h"

namespace smp::detail {

void require_outputs(bool here, std::size_t count) {
  SMP_REQUIRE(here,
              "this rank was not given the outputs of the step (broadcast_outputs = false); "
              "read them on pp_rank 0");
  SMP_REQUIRE(count > 0, "this StepOutput is empty: no step filled it");
}

static void require_equal_shapes(const std::vector<at::Tensor>& outputs, const char* what) {
  for (std::size_t i = 1; i < outputs.size(); ++i) {
    SMP_REQUIRE(outputs[i].sizes() == outputs[0].sizes(), "smp::StepOutput::", what,
                "(): microbatches 0 and ", i, " gave tensors of shapes ", outputs[0].sizes(),
                " and ", outputs[i].sizes(),
                ", whose elements do not belong together; join them "
                "with concat(), or let the body return a sum");
  }
}

/// In 16 bits a sum of ones would stop at 256.
static at::Tensor widened(const at::Tensor& output) {
  return at::isReducedFloatingType(output.scalar_type()) ? output.to(at::kFloat) : output;
}

at::Tensor reduce_mean(const std::vector<at::Tensor>& outputs, const std::vector<double>& weights) {
  require_equal_shapes(outputs, "reduce_mean");
  at::NoGradGuard no_grad;
  auto mean = widened(outputs[0]) * weights[0];
  for (std::size_t i = 1; i < outputs.size(); ++i) mean += widened(outputs[i]) * weights[i];
  const bool rounds = at::isReducedFloatingType(outputs[0].scalar_type());
  return rounds ? mean.to(outputs[0].scalar_type()) : mean;
}

at::Tensor reduce_sum(const std::vector<at::Tensor>& outputs) {
  require_equal_shapes(outputs, "reduce_sum");
  at::NoGradGuard no_grad;
  // Added to one of truth values, others would only be joined to it.
  const bool counts = outputs[0].scalar_type() == at::kBool;
  auto sum = counts ? outputs[0].to(at::kLong) : widened(outputs[0]).clone();
  for (std::size_t i = 1; i < outputs.size(); ++i) sum += outputs[i];
  return counts ? sum : sum.to(outputs[0].scalar_type());
}

at::Tensor concat(const std::vector<at::Tensor>& outputs, int axis) {
  at::NoGradGuard no_grad;
  return at::cat(outputs, axis);
}

at::Tensor stack(const std::vector<at::Tensor>& outputs) {
  at::NoGradGuard no_grad;
  return at::stack(outputs);
}

}  // namespace smp::detail
