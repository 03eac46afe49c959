// smp/state.h: members that a module writes in forward, and what a program may say about them
// (docs/what_is_equal.md).
//
// Microbatches interleave inside one module object, and a module may live on another rank than the
// code that reads its members. A trial run finds the modules that write members or buffers. By
// default such members are kept as in one process: the module and those above it stay on stage 0,
// where every reader is, and steps run one microbatch at a time. These say what costs less:
//
//     template <> inline constexpr bool smp::ordered_state_v<CounterImpl> = true;
#pragma once

#include <cstddef>
#include <cstdint>

namespace smp {

/// Declares that no code outside of Impl reads or writes what it keeps, and that it does not matter
/// which microbatches a call of Impl follows, or finds in progress. The module is neither watched
/// nor kept in order.
template <class Impl>
inline constexpr bool private_state_v = false;

/// Declares that no code outside of Impl reads or writes what it keeps, but that its calls read
/// what earlier ones left (a counter, a memory). The module may live anywhere; a microbatch enters
/// it when the forward passes of all lower ones are done.
template <class Impl>
inline constexpr bool ordered_state_v = false;

/// Treats Impl as if the trial run had seen members that others read, for state that only later
/// steps show.
template <class Impl>
inline constexpr bool shared_state_v = false;

/// The declaration of a program about the members of a module.
enum class StateUse : std::uint8_t {
  kWatched,  ///< no declaration: they are watched
  kPrivate,
  kOrdered,
  kShared,
};

namespace detail {

template <class Impl>
constexpr StateUse state_use() noexcept {
  if (private_state_v<Impl>) return StateUse::kPrivate;
  if (shared_state_v<Impl>) return StateUse::kShared;
  return ordered_state_v<Impl> ? StateUse::kOrdered : StateUse::kWatched;
}

}  // namespace detail

/// The memory of a user's module object. The torch::nn::Module inside is not the user's part of it.
struct OwnPart {
  const char* object = nullptr;
  std::size_t size = 0;
  std::size_t base = 0;       ///< offset of the torch::nn::Module inside
  std::size_t base_size = 0;  ///< its bytes
};

}  // namespace smp
