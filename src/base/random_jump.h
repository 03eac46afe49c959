// base/random_jump.h: leaving out random numbers without computing them one by one.
#pragma once

#include <ATen/core/MT19937RNGEngine.h>

#include <cstdint>

namespace smp::base {

/// Brings `engine` to the state it has after `count` further numbers, bit for bit. Up to ten
/// million are stepped over at 1 ns each. More cost about 50 ms, however many, and a few
/// milliseconds when as many are skipped again. Threads: any.
void skip_numbers(at::mt19937& engine, std::uint64_t count);

}  // namespace smp::base
