// Bytes of another rank as they should never come: cut, made longer, with flipped bits, with
// numbers of which all is wrong, or nothing but noise.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

namespace smp::d2d {

/// SMP_FUZZ_ROUNDS percent of `usual`; without that variable `usual`, which takes seconds.
inline int fuzz_rounds(int usual) {
  const char* const percent = std::getenv("SMP_FUZZ_ROUNDS");
  return static_cast<int>((percent == nullptr ? 100L : std::stol(percent)) * usual / 100);
}

/// Same seed, same damage.
class DamagedBytes {
 public:
  using Bytes = std::vector<std::byte>;
  explicit DamagedBytes(std::uint64_t seed) : random_(seed) {}

  std::uint64_t below(std::uint64_t bound) { return random_() % bound; }
  bool one_in(std::uint64_t count) { return below(count) == 0; }
  Bytes noise(std::size_t size) {
    Bytes bytes(size);
    for (auto& byte : bytes) byte = static_cast<std::byte>(random_());
    return bytes;
  }
  /// `bytes` with one or two things wrong.
  Bytes of(Bytes bytes) {
    damage(bytes);
    if (one_in(4)) damage(bytes);
    return bytes;
  }
  /// A number that whoever reads it should not trust, or one beside `number`.
  std::uint64_t number(std::uint64_t number) {
    static constexpr std::uint64_t kTelling[] = {0,
                                                 1,
                                                 2,
                                                 0x7f,
                                                 0x80,
                                                 0xff,
                                                 0xffff,
                                                 0x7fff'ffff,
                                                 0x8000'0000,
                                                 0xffff'ffff,
                                                 0x1'0000'0000,
                                                 std::uint64_t{1} << 40,
                                                 std::uint64_t{1} << 62,
                                                 0x7fff'ffff'ffff'ffff,
                                                 std::uint64_t{1} << 63,
                                                 ~std::uint64_t{0} - 7,
                                                 ~std::uint64_t{0}};
    switch (below(4)) {
      case 0:
        return number + 1;
      case 1:
        return number - 1;
      case 2:
        return random_();
      default:
        return kTelling[below(std::size(kTelling))];
    }
  }

 private:
  void damage(Bytes& bytes) {
    switch (below(6)) {
      case 0:
        if (!bytes.empty()) bytes.resize(below(bytes.size()));
        break;
      case 1: {
        const Bytes more = noise(1 + below(64));
        bytes.insert(bytes.end(), more.begin(), more.end());
        break;
      }
      case 2:
        if (one_in(4)) bytes = noise(below(bytes.size() + 1));
        break;
      case 3:
        for (auto flips = 1 + below(8); flips > 0 && !bytes.empty(); --flips) {
          bytes[below(bytes.size())] ^= static_cast<std::byte>(1U << below(8));
        }
        break;
      default:  // most of what is read are numbers
        overwrite(bytes, std::size_t{1} << below(4));
    }
  }
  void overwrite(Bytes& bytes, std::size_t size) {
    if (bytes.size() < size) return;
    auto* const place = bytes.data() + below(bytes.size() / size) * size;
    std::uint64_t value = 0;
    std::memcpy(&value, place, size);
    value = number(value);
    std::memcpy(place, &value, size);
  }

  std::mt19937_64 random_;
};

}  // namespace smp::d2d
