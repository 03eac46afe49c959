// server/backward/dead_frames.h: code that runs inside at::parallel_for, where nothing may wait,
// and whether what was refused there is still written to.
#pragma once

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/TensorIterator.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <thread>

namespace smp::server::test {

/// Runs `act` on this thread inside at::parallel_for.
inline void inside_parallel_for(const std::function<void()>& act) {
  const auto own = std::this_thread::get_id();
  const auto loop = [&](char**, const std::int64_t*, std::int64_t, std::int64_t) {
    if (std::this_thread::get_id() == own) act();
  };
  const int threads = at::get_num_threads();
  at::set_num_threads(2);
  at::Tensor tensor = at::zeros({1 << 16});
  // A kernel of LibTorch, which knows of OpenMP: parallel_for in this file does not.
  at::TensorIterator::nullary_op(tensor).for_each(loop, /*grain_size=*/1);
  at::set_num_threads(threads);
}

/// Whether `act` writes nothing to where frames that are gone had their objects: those of what its
/// caller called before.
[[gnu::noinline]] inline bool leaves_dead_frames_alone(const std::function<void()>& act) {
  std::array<volatile char, 64 * 1024> frames{};
  act();
  return std::all_of(frames.begin(), frames.end(), [](volatile char& byte) { return byte == 0; });
}

}  // namespace smp::server::test
