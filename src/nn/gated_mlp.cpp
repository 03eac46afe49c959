// nn/gated_mlp.cpp: see smp/nn/gated_mlp.h.
#include "smp/nn/gated_mlp.h"

#include <ATen/ATen.h>

#include "base/check.h"
#include "nn/gate_activation.h"

namespace smp::nn {
namespace {

Linear projection(std::int64_t inputs, std::int64_t outputs, const GatedMlpOptions& options) {
  SMP_REQUIRE(inputs > 0 && outputs > 0, "GatedMlp: width ", options.width(), " and inner_width ",
              options.inner_width(), " must be at least 1");
  return Linear(LinearOptions(inputs, outputs).bias(options.bias()));
}

}  // namespace

at::Tensor activated(const at::Tensor& gate, GateActivation activation) {
  switch (activation) {
    case GateActivation::kSilu:
      return at::silu(gate);
    case GateActivation::kGeluTanh:
      return at::gelu(gate, "tanh");
    case GateActivation::kGelu:
      return at::gelu(gate);
  }
  throw UsageError("GatedMlp: the activation is none of GateActivation");
}

GatedMlpImpl::GatedMlpImpl(const GatedMlpOptions& with)
    : options(with),
      gate_proj(register_module("gate_proj", projection(with.width(), with.inner_width(), with))),
      up_proj(register_module("up_proj", projection(with.width(), with.inner_width(), with))),
      down_proj(register_module("down_proj", projection(with.inner_width(), with.width(), with))) {}

void GatedMlpImpl::pretty_print(std::ostream& stream) const {
  stream << "smp::nn::GatedMlp(" << options.width() << ", " << options.inner_width() << ")";
}

at::Tensor GatedMlpImpl::forward(const at::Tensor& input) {
  return down_proj(activated(gate_proj(input), options.activation()) * up_proj(input));
}

}  // namespace smp::nn
