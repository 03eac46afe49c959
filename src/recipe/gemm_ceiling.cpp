// recipe/gemm_ceiling.cpp: see the header.
#include "smp/recipe/gemm_ceiling.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>

#include <algorithm>
#include <chrono>

#include "base/check.h"

namespace smp {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Reading an element waits for devices that compute in the background.
double seconds_of_product(at::Tensor& product, const at::Tensor& left, const at::Tensor& right) {
  const auto start = Clock::now();
  at::mm_out(product, left, right);
  product[0][0].item<double>();
  return seconds_since(start);
}

}  // namespace

double measured_gemm_flops(const GemmCeilingOptions& options) {
  SMP_REQUIRE(options.size > 0 && options.seconds > 0, "measured_gemm_flops: products of size ",
              options.size, " for ", options.seconds, " s; both are above 0");
  const at::NoGradGuard no_grad;
  const auto like = at::TensorOptions().dtype(options.dtype).device(options.device);
  const auto left = at::ones({options.size, options.size}, like);
  const auto right = at::ones({options.size, options.size}, like);
  auto product = at::mm(left, right);  // the first one prepares kernels and threads
  const auto start = Clock::now();
  double fastest = seconds_of_product(product, left, right);
  while (seconds_since(start) < options.seconds) {
    fastest = std::min(fastest, seconds_of_product(product, left, right));
  }
  const auto size = static_cast<double>(options.size);
  return 2 * size * size * size / fastest;
}

}  // namespace smp
