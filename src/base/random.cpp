// base/random.cpp: filling a Mersenne twister from a 64-bit key, and exchanging generators.
#include "base/random.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>

#include <utility>
#include <vector>

namespace smp::base {
namespace {

std::uint64_t splitmix64(std::uint64_t x) noexcept {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

/// Fills `numbers` with a 32-bit hash of each index, keyed by both halves of `key`. It takes as
/// many steps for eight numbers as for one where the processor multiplies eight at once. Every call
/// of a module that may draw fills all of them, so calls that do not draw pay for it too.
[[gnu::always_inline]] inline void hash_places(std::uint32_t* numbers, std::uint64_t key) noexcept {
  const auto low = static_cast<std::uint32_t>(key), high = static_cast<std::uint32_t>(key >> 32);
  for (std::uint32_t i = 0; i < at::MERSENNE_STATE_N; ++i) {
    std::uint32_t x = i * 0x9e3779b9u + low;
    x = (x ^ (x >> 16)) * 0x21f0aaadu;
    x = (x ^ (x >> 15) ^ high) * 0x735a2d97u;
    numbers[i] = x ^ (x >> 15);
  }
}

#if defined(__x86_64__)
[[gnu::target("avx2")]] void fill_by_eight(std::uint32_t* numbers, std::uint64_t key) noexcept {
  hash_places(numbers, key);
}
#endif

void fill_numbers(std::uint32_t* numbers, std::uint64_t key) noexcept {
#if defined(__x86_64__)
  static const bool by_eight = __builtin_cpu_supports("avx2") != 0;
  if (by_eight) return fill_by_eight(numbers, key);
#endif
  hash_places(numbers, key);
}

/// Access to the state of a generator in place. LibTorch hands it out by value only, which takes
/// three copies of 2.5 KB per call. An explicit instantiation may name private members
/// ([temp.spec.general]).
template <at::mt19937 at::CPUGeneratorImpl::*kEngine, at::mt19937_data_pod at::mt19937::*kData>
struct StateAccess {
  friend at::mt19937_data_pod& state_of(at::CPUGeneratorImpl& generator) noexcept {
    return generator.*kEngine.*kData;
  }
};
at::mt19937_data_pod& state_of(at::CPUGeneratorImpl& generator) noexcept;
template struct StateAccess<&at::CPUGeneratorImpl::engine_, &at::mt19937::data_>;

/// Fills the whole state of a generator from `key`. The engine's own seeding uses 32 bits of the
/// seed and is a serial chain; this uses all 64.
void fill(at::CPUGeneratorImpl& generator, std::uint64_t key) {
  auto& state = state_of(generator);
  state.seed_ = key;
  state.seeded_ = true;
  state.left_ = 1;
  state.next_ = 0;
  fill_numbers(state.state_.data(), splitmix64(key));
  generator.set_next_float_normal_sample({});
  generator.set_next_double_normal_sample({});
}

std::vector<at::Generator>& pool() {
  static thread_local std::vector<at::Generator> generators;
  return generators;
}

at::Generator take() {
  auto& free = pool();
  if (free.empty()) return at::detail::createCPUGenerator();
  auto generator = std::move(free.back());
  free.pop_back();
  return generator;
}

/// The device whose generator is exchanged, and generators of its kind that nobody uses.
struct RandomDevice {
  at::Device device{at::kCPU};
  at::Generator* generator = nullptr;  ///< the device's default
  std::vector<at::Generator> free;
};

RandomDevice& random_device() {
  static RandomDevice device;
  return device;
}

at::Generator take_of_device(RandomDevice& own) {
  if (own.free.empty()) {
    return at::globalContext()
        .getAcceleratorHooksInterface(own.device.type())
        .getNewGenerator(own.device.index());
  }
  auto generator = std::move(own.free.back());
  own.free.pop_back();
  return generator;
}

}  // namespace

void set_random_device(at::Device device) {
  auto& own = random_device();
  own = {device, nullptr, {}};
  if (device.is_cpu()) return;
  // Every device keeps one for as long as the process lives, and hands it out as const.
  own.generator = const_cast<at::Generator*>(&at::globalContext().defaultGenerator(device));
}

at::Generator* device_generator() noexcept { return random_device().generator; }

at::Generator& default_generator() noexcept {
  // A function-local, non-const static inside LibTorch, handed out as const.
  static auto& generator = const_cast<at::Generator&>(at::detail::getDefaultCPUGenerator());
  return generator;
}

std::uint64_t mix_key(std::uint64_t key, std::uint64_t value) noexcept {
  return splitmix64(key ^ splitmix64(value));
}

std::uint64_t mix_key(std::uint64_t key, std::string_view text) noexcept {
  std::uint64_t hash = 0xcbf29ce484222325ull;
  for (const unsigned char c : text) hash = (hash ^ c) * 0x100000001b3ull;
  return mix_key(key, hash);
}

RandomScope::RandomScope(std::uint64_t key) {
  auto& own = random_device();
  at::Generator of_device;
  if (own.generator != nullptr) {  // first: it may throw
    of_device = take_of_device(own);
    of_device.set_current_seed(key);  // and begins at its first number
  }
  auto generator = take();
  fill(*static_cast<at::CPUGeneratorImpl*>(generator.unsafeGetGeneratorImpl()), key);
  previous_ = std::exchange(default_generator(), std::move(generator));
  if (of_device.defined()) {
    previous_of_device_ = std::exchange(*own.generator, std::move(of_device));
  }
}

RandomScope::~RandomScope() {
  pool().push_back(std::exchange(default_generator(), std::move(previous_)));
  if (!previous_of_device_.defined()) return;
  auto& own = random_device();
  own.free.push_back(std::exchange(*own.generator, std::move(previous_of_device_)));
}

}  // namespace smp::base
