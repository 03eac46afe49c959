// deferred/random_stream.h: where in a generator's stream an operator draws, told without drawing.
#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>

namespace smp::deferred {

/// A point in a stream of random numbers: `drawn` 32-bit numbers after the state of `start`, which
/// nobody changes.
struct RandomPosition {
  at::Generator start;
  std::uint64_t drawn = 0;
};

/// True if `op` may draw random numbers.
bool draws_random(const c10::OperatorHandle& op);

/// Tells how many numbers an operator draws to fill a large tensor. It measures this on small
/// tensors, so that it is right for the LibTorch that is loaded.
class DrawCounts {
 public:
  /// Returns the number of 32-bit numbers that `op` (normal_, uniform_, randn, rand) draws to fill
  /// `filled`; nothing if it is not a plain multiple of the size, or unknown.
  std::optional<std::uint64_t> of(const c10::OperatorHandle& op, const at::Tensor& filled);

 private:
  struct Rule {
    std::uint64_t row = 0;     // of 16 elements
    std::uint64_t tail[16]{};  // of what is left over
    bool exact = true;
    bool small = true;  // holds below 16 elements too
  };
  static Rule measure(bool normal, at::ScalarType type);
  std::map<std::pair<bool, at::ScalarType>, Rule> rules_;
};

/// Follows CPU generators through a program whose draws are put off. A generator is always where it
/// would be had the numbers been drawn, so that whatever looks at it, seeds it, copies it or draws
/// from it otherwise, on any thread, finds what it would have found.
class RandomStream {
 public:
  /// Returns the position of the next number of `generator`. Neighbouring ones share a start.
  RandomPosition position(at::Generator generator);
  /// Moves the generator of the last position on by `count` numbers, as if they had been drawn.
  void skip(std::uint64_t count);
  /// Gives the generator of the last position the state of `drawn`, by which somebody drew for it.
  void follow(const at::Generator& drawn);

 private:
  at::Generator generator_;  // whom the last position was asked of
  at::Generator left_;       // how it was left
  at::Generator start_;
  std::uint64_t drawn_ = 0;
};

/// A generator that visits positions of streams. Ascending order is the cheapest.
class RandomCursor {
 public:
  /// Returns a generator that stands at `position`. The caller draws `count` numbers; nothing if he
  /// does not know how many.
  const at::Generator& at(const RandomPosition& position, std::optional<std::uint64_t> count);
  /// Returns the generator in the state in which its last user left it.
  const at::Generator& generator() const { return generator_; }

 private:
  at::Generator start_;
  at::Generator generator_;
  std::optional<std::uint64_t> drawn_;
};

}  // namespace smp::deferred
