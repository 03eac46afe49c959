// precision/stochastic_rounding.cpp: the loop for CPUs.
#include "precision/stochastic_rounding.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>

#include "base/check.h"
#include "base/random.h"
#include "precision/philox.h"
#include "precision/rounding_on_device.h"

namespace smp::precision {
namespace {

constexpr std::int64_t kGrain = 1 << 15;

/// Without branches, so that the loop around it is vectorised.
[[gnu::always_inline]] inline std::uint16_t rounded(std::uint32_t bits,
                                                    std::uint32_t random) noexcept {
  const std::uint32_t magnitude = bits & kMagnitude;
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000u);
  const auto moved = static_cast<std::uint16_t>((magnitude + random) >> 16);
  const auto finite = std::min(moved, kLargestFinite);
  const auto other = static_cast<std::uint16_t>(
      (magnitude >> 16) | (magnitude > kInfinity ? kQuietNan : std::uint16_t{0}));
  return static_cast<std::uint16_t>(sign | (magnitude < kInfinity ? finite : other));
}

/// The bits of the elements of a block. Element e has half e / 8 % 2 of word e / 16 of lane e % 8,
/// so that neighbours come from neighbouring lanes.
[[gnu::always_inline]] inline void draw(std::array<std::uint32_t, kBlock>& bits, std::uint64_t key,
                                        std::int64_t block) noexcept {
  const auto drawn = philox<kLanes>(key, static_cast<std::uint64_t>(block * kLanes));
  for (std::size_t word = 0; word < 4; ++word) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      const auto value = drawn.words[word][lane];
      bits[word * 2 * kLanes + lane] = value & 0xFFFFu;
      bits[word * 2 * kLanes + kLanes + lane] = value >> 16;
    }
  }
}

/// Rounds `count` neighbours, of which the first is element `first` of the whole.
[[gnu::always_inline]] inline void round_run(const float* from, std::uint16_t* to,
                                             std::int64_t count, std::int64_t first,
                                             std::uint64_t key) noexcept {
  std::array<std::uint32_t, kBlock> bits;
  const auto* const words = reinterpret_cast<const std::uint32_t*>(from);
  std::int64_t done = 0;
  while (done < count) {
    const std::int64_t element = first + done;
    const std::int64_t within = element % kBlock;
    const std::int64_t here = std::min(count - done, kBlock - within);
    draw(bits, key, element / kBlock);
    const std::uint32_t* const random = bits.data() + within;
    for (std::int64_t i = 0; i < here; ++i) to[done + i] = rounded(words[done + i], random[i]);
    done += here;
  }
}

void round_plainly(const float* from, std::uint16_t* to, std::int64_t count, std::int64_t first,
                   std::uint64_t key) noexcept {
  round_run(from, to, count, first, key);
}

#if defined(__x86_64__)
[[gnu::target("avx2")]] void round_by_eight(const float* from, std::uint16_t* to,
                                            std::int64_t count, std::int64_t first,
                                            std::uint64_t key) noexcept {
  round_run(from, to, count, first, key);
}
#endif

using Run = void (*)(const float*, std::uint16_t*, std::int64_t, std::int64_t, std::uint64_t);

Run fastest_run() noexcept {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) return round_by_eight;
#endif
  return round_plainly;
}

/// Elements `begin` to `end` of the part, row by row.
void round_rows(Run run, const float* from, std::uint16_t* to, const WholeIndex& part,
                std::uint64_t key, std::int64_t begin, std::int64_t end) noexcept {
  while (begin < end) {
    const std::int64_t row = begin / part.inner, within = begin % part.inner;
    const std::int64_t count = std::min(end - begin, part.inner - within);
    run(from + begin, to + begin, count, row * part.whole_inner + part.first + within, key);
    begin += count;
  }
}

void round_on_cpu(const at::Tensor& from, const at::Tensor& to, std::uint64_t key,
                  const WholeIndex& part) {
  static const Run run = fastest_run();
  const auto* const source = from.const_data_ptr<float>();
  auto* const target = reinterpret_cast<std::uint16_t*>(to.data_ptr<at::BFloat16>());
  at::parallel_for(0, from.numel(), kGrain, [&](std::int64_t begin, std::int64_t end) {
    round_rows(run, source, target, part, key, begin, end);
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
