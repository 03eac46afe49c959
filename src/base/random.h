// base/random.h: random streams keyed by what is computed, not by when or where, so that dropout
// masks depend on neither schedule, placement nor number of ranks (docs/design.md, Random numbers).
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <string_view>

namespace smp::base {

/// Returns LibTorch's default CPU generator as an exchangeable pointer: every CPU kernel asks for
/// it anew.
at::Generator& default_generator() noexcept;

/// Sets the device whose default generator every RandomScope fills as well from now on; the CPU
/// stands for none. One at a time for the whole process, as LibTorch's generators are.
void set_random_device(at::Device device);
/// The default generator of that device, exchangeable as well: kernels of a device ask for it anew.
/// nullptr if there is none.
at::Generator* device_generator() noexcept;

/// Returns `key` with `value` mixed in: a change of any bit changes about half of the result's
/// bits, and the order of two values matters.
std::uint64_t mix_key(std::uint64_t key, std::uint64_t value) noexcept;
std::uint64_t mix_key(std::uint64_t key, std::string_view text) noexcept;

/// While it lives, the default generators (of the CPU and of the random device) are pooled ones
/// whose whole state is filled from `key`; its destructor puts the previous ones back, unchanged.
/// Threads: the rank's; scopes nest.
class RandomScope {
 public:
  explicit RandomScope(std::uint64_t key);
  ~RandomScope();
  RandomScope(const RandomScope&) = delete;
  RandomScope& operator=(const RandomScope&) = delete;

 private:
  at::Generator previous_;
  at::Generator previous_of_device_;  // undefined: there is no device
};

}  // namespace smp::base
