// api/optimizer/norms.cpp: see the header.
#include "smp/norms.h"

#include <cmath>
#include <limits>

#include "api/optimizer/total_norm.h"
#include "smp/distributed_model.h"

namespace smp {
namespace {

double number_of(const at::Tensor& norm) { return norm.defined() ? norm.item<double>() : 0; }

}  // namespace

double grad_norm(const std::vector<at::Tensor>& parameters, double norm_type) {
  return number_of(total_norm_of_gradients(parameters, {"smp::grad_norm", norm_type}));
}
double grad_norm(ModelList models, double norm_type) {
  return grad_norm(parameters_of(models), norm_type);
}
double grad_norm(DistributedModelBase& model, double norm_type) {
  return grad_norm(model.parameters(), norm_type);
}

/// Checks the greatest element: sums of squares of finite elements may be infinite themselves.
bool grad_overflow(const std::vector<at::Tensor>& parameters) {
  constexpr double kGreatest = std::numeric_limits<double>::infinity();
  const auto norm = total_norm_of_gradients(parameters, {"smp::grad_overflow", kGreatest});
  return !std::isfinite(number_of(norm));
}
bool grad_overflow(ModelList models) { return grad_overflow(parameters_of(models)); }
bool grad_overflow(DistributedModelBase& model) { return grad_overflow(model.parameters()); }

double parameter_norm(const std::vector<at::Tensor>& parameters, double norm_type) {
  return number_of(total_norm_of_values(parameters, {"smp::parameter_norm", norm_type}));
}
double parameter_norm(ModelList models, double norm_type) {
  return parameter_norm(parameters_of(models), norm_type);
}
double parameter_norm(DistributedModelBase& model, double norm_type) {
  return parameter_norm(model.parameters(), norm_type);
}

}  // namespace smp
