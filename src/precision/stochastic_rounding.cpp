// precision/stochastic_rounding.cpp: the loop for CPUs.
#include "precision/stochastic_rounding.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "base/check.h"
#include "base/random.h"
#include "precision/each_run.h"
#include "precision/rounding_on_device.h"
#include "precision/step_loop.h"

namespace smp::precision {
namespace {

void round_on_cpu(const at::Tensor& from, const at::Tensor& to, std::uint64_t key,
                  const WholeIndex& part) {
  const auto* const source = from.const_data_ptr<float>();
  auto* const target = reinterpret_cast<std::uint16_t*>(to.data_ptr<at::BFloat16>());
  const auto& loops = step_loops().front();
  each_run(part, from.numel(), [&](std::int64_t begin, std::int64_t count, std::int64_t whole) {
    loops.round(source + begin, target + begin, count, {true, key, whole});
  });
}

}  // namespace

std::uint64_t rounding_key(std::uint64_t seed, std::uint64_t step, std::string_view parameter) {
  return base::mix_key(base::mix_key(seed, step), parameter);
}

void round_stochastically(const at::Tensor& from, const at::Tensor& to, std::uint64_t key,
                          const WholeIndex& part) {
  SMP_ASSERT(from.scalar_type() == at::kFloat && to.scalar_type() == at::kBFloat16, "of types ",
             from.scalar_type(), " and ", to.scalar_type());
  SMP_ASSERT(from.is_contiguous() && to.is_contiguous() && from.sizes() == to.sizes() &&
                 from.device() == to.device(),
             "of shapes ", from.sizes(), " and ", to.sizes());
  if (from.numel() == 0) return;
  SMP_ASSERT(part.inner > 0, "a part without rows");
  const at::NoGradGuard no_grad;
  if (from.is_cpu()) {
    round_on_cpu(from.detach(), to.detach(), key, part);
  } else {
    round_on_device(from.detach(), to.detach(), key, part);
  }
}

}  // namespace smp::precision
