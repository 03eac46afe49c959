// base/random_jump.cpp: the Mersenne twister as a linear map over GF(2) (Haramoto et al., 2008):
// k steps are one polynomial in the step, x^k modulo the characteristic polynomial.
#include "base/random_jump.h"

#include <algorithm>
#include <array>
#include <bit>
#include <bitset>
#include <cstddef>
#include <map>
#include <vector>

namespace smp::base {
namespace {

constexpr std::size_t kWords = at::MERSENNE_STATE_N;
constexpr std::size_t kShift = at::MERSENNE_STATE_M;
constexpr std::size_t kDegree = 19937;          // bits of state that matter
constexpr std::uint64_t kStepAtMost = 1 << 14;  // blocks; beyond, a known jump is faster
constexpr std::size_t kKnown = 64;              // powers that are kept, of 2.5 KB

using Window = std::array<std::uint32_t, kWords>;

/// A window of 624 neighbouring words of the generator's sequence, as a ring.
class Sequence {
 public:
  explicit Sequence(const Window& words) : words_(words) {}

  void step() {
    const auto next = at_offset(1);
    const auto mixed = (words_[start_] & at::UMASK) | (next & at::LMASK);
    words_[start_] = at_offset(kShift) ^ (mixed >> 1) ^ ((next & 1) != 0 ? at::MATRIX_A : 0);
    start_ = start_ + 1 == kWords ? 0 : start_ + 1;
  }
  void add(const Window& other) {
    const auto head = kWords - start_;
    for (std::size_t i = 0; i < head; ++i) words_[start_ + i] ^= other[i];
    for (std::size_t i = head; i < kWords; ++i) words_[i - head] ^= other[i];
  }
  std::uint32_t at_offset(std::size_t offset) const {
    const auto index = start_ + offset;
    return words_[index < kWords ? index : index - kWords];
  }
  Window window() const {
    Window result;
    for (std::size_t i = 0; i < kWords; ++i) result[i] = at_offset(i);
    return result;
  }

 private:
  Window words_;
  std::size_t start_ = 0;
};

using Bits = std::bitset<kDegree + 31>;

/// The shortest recurrence of one bit of the sequence, by Berlekamp and Massey. The twister's
/// period is a Mersenne prime, so any bit of it has the characteristic polynomial of the whole.
Bits characteristic_polynomial() {
  Window words{};
  words[kWords - 1] = 1;
  Sequence sequence(words);
  Bits recurrence(1), previous(1), recent;
  std::size_t length = 0;
  for (std::size_t n = 0; n < 2 * kDegree; ++n) {
    recent <<= 1;
    recent[0] = (sequence.at_offset(kWords - 1) & 1) != 0;
    sequence.step();
    previous <<= 1;
    if ((recurrence & recent).count() % 2 == 0) continue;
    const auto before = recurrence;
    recurrence ^= previous;
    if (2 * length > n) continue;
    length = n + 1 - length;
    previous = before;
  }
  Bits polynomial;
  for (std::size_t i = 0; i <= kDegree; ++i) polynomial[i] = recurrence[kDegree - i];
  return polynomial;
}

using Words = std::vector<std::uint64_t>;

bool bit(const Words& words, std::size_t index) { return (words[index / 64] >> (index % 64)) & 1; }

/// Arithmetic on polynomials of degree below kDegree.
class Field {
 public:
  static constexpr std::size_t kLength = kDegree / 64 + 1;

  Field() {
    const auto polynomial = characteristic_polynomial();
    for (std::size_t shift = 0; shift < 64; ++shift) {
      auto& modulus = moduli_[shift];
      modulus.assign(kLength + 1, 0);
      for (std::size_t i = 0; i <= kDegree; ++i) {
        if (polynomial[i]) modulus[(i + shift) / 64] |= std::uint64_t{1} << ((i + shift) % 64);
      }
    }
  }

  /// Returns x^exponent.
  Words power(std::uint64_t exponent) const {
    Words result(kLength);
    result[0] = 1;
    for (int i = 63 - std::countl_zero(exponent | 1); i >= 0; --i) {
      result = square(result);
      if ((exponent >> i) & 1) result = times_x(result);
    }
    return result;
  }

 private:
  void reduce(Words& words) const {
    for (std::size_t i = 64 * words.size() - 1; i >= kDegree; --i) {
      if (!bit(words, i)) continue;
      const auto offset = (i - kDegree) / 64;
      const auto& modulus = moduli_[(i - kDegree) % 64];
      const auto length = std::min(modulus.size(), words.size() - offset);
      for (std::size_t j = 0; j < length; ++j) words[offset + j] ^= modulus[j];
    }
    words.resize(kLength);
  }
  Words square(const Words& words) const {
    Words result(2 * kLength + 1);
    for (std::size_t i = 0; i < kDegree; ++i) {
      if (bit(words, i)) result[2 * i / 64] |= std::uint64_t{1} << (2 * i % 64);
    }
    reduce(result);
    return result;
  }
  Words times_x(const Words& words) const {
    Words result(kLength + 1);
    for (std::size_t i = 0; i < kLength; ++i) {
      result[i] |= words[i] << 1;
      result[i + 1] |= words[i] >> 63;
    }
    reduce(result);
    return result;
  }

  std::array<Words, 64> moduli_;  // the polynomial times x^shift
};

/// Returns x^steps. The tensors of a model have few sizes, so powers come again.
const Words& power(std::uint64_t steps) {
  static const Field field;
  static thread_local std::map<std::uint64_t, Words> known;
  if (const auto found = known.find(steps); found != known.end()) return found->second;
  if (known.size() == kKnown) known.clear();
  return known.emplace(steps, field.power(steps)).first->second;
}

/// Returns the window of the sequence that begins `steps` words after `window`.
Window jump(const Window& window, std::uint64_t steps) {
  const auto& polynomial = power(steps);
  Sequence sum{Window{}};
  for (std::size_t i = kDegree; i-- > 0;) {
    sum.step();
    if (bit(polynomial, i)) sum.add(window);
  }
  return sum.window();
}

/// Goes to the next block by LibTorch's own step; one number of it is drawn afterwards.
void next_block(at::mt19937& engine) {
  auto data = engine.data();
  data.left_ = 1;
  engine.set_data(data);
  engine();
}

void jump_blocks(at::mt19937& engine, std::uint64_t blocks) {
  auto data = engine.data();
  data.state_ = jump(data.state_, blocks * kWords);
  engine.set_data(data);
}

}  // namespace

void skip_numbers(at::mt19937& engine, std::uint64_t count) {
  if (count == 0) return;
  // Numbers drawn from the block; of a fresh seed, which is a block of its own, all are.
  const auto drawn = kWords + 1 - static_cast<std::uint64_t>(engine.data().left_);
  const auto target = drawn + count;
  const auto blocks = (target - 1) / kWords;
  // The first step is a plain one: a seed's first word has bits that the map does not know.
  if (blocks > 0) next_block(engine);
  if (blocks > kStepAtMost) {
    jump_blocks(engine, blocks - 1);
  } else {
    for (std::uint64_t i = 1; i < blocks; ++i) next_block(engine);
  }
  auto data = engine.data();
  const auto in_block = target - blocks * kWords;
  data.left_ = static_cast<int>(kWords + 1 - in_block);
  data.next_ = static_cast<std::uint32_t>(in_block);
  engine.set_data(data);
}

}  // namespace smp::base
