// samples/gpt/text.cpp: see the header.
#include "text.h"

#include <array>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <random>
#include <stdexcept>

namespace gpt {
namespace {

/// The standard fixes the engine's numbers, so every library gives the same windows.
std::int64_t draw_below(std::int64_t bound, std::uint64_t seed, std::int64_t step,
                        std::int64_t row) {
  std::seed_seq key{static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32),
                    static_cast<std::uint32_t>(step), static_cast<std::uint32_t>(row)};
  return static_cast<std::int64_t>(std::mt19937_64(key)() % static_cast<std::uint64_t>(bound));
}

}  // namespace

Text Text::read(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  if (!stream || std::filesystem::is_directory(file)) {
    const bool is_default = file == default_text();
    throw std::runtime_error("cannot read the text " + file.string() +
                             (is_default ? "; samples/t5/fetch_text.sh puts it there" : ""));
  }
  return Text({std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()});
}

Batch Text::batch(std::uint64_t seed, std::int64_t step, std::int64_t first, std::int64_t rows,
                  std::int64_t length) const {
  if (size_bytes() <= length) {
    throw std::invalid_argument("the text has " + std::to_string(size_bytes()) +
                                " bytes; a row is of " + std::to_string(length + 1));
  }
  auto windows = torch::empty({rows, length + 1}, torch::kLong);
  auto* to = windows.data_ptr<std::int64_t>();
  for (std::int64_t row = first; row < first + rows; ++row) {
    const auto start = draw_below(size_bytes() - length, seed, step, row);
    for (std::int64_t i = 0; i <= length; ++i) {
      *to++ = static_cast<unsigned char>(bytes_[static_cast<std::size_t>(start + i)]);
    }
  }
  return {windows.narrow(1, 0, length), windows.narrow(1, 1, length)};
}

double Text::unigram_entropy() const {
  std::array<double, 256> counts{};
  for (const char byte : bytes_) ++counts[static_cast<unsigned char>(byte)];
  double entropy = 0;
  for (const double count : counts) {
    const double share = count / static_cast<double>(size_bytes());
    if (count > 0) entropy -= share * std::log(share);
  }
  return entropy;
}

std::string printable(std::string bytes) {
  for (char& byte : bytes) {
    if (byte != '\n' && (byte < ' ' || byte > '~')) byte = '?';
  }
  return bytes;
}

std::filesystem::path default_text() {
  const char* const cache = std::getenv("XDG_CACHE_HOME");
  const char* const home = std::getenv("HOME");
  const std::filesystem::path folder = cache != nullptr && *cache != '\0'
                                           ? std::filesystem::path(cache)
                                           : std::filesystem::path(home ? home : ".") / ".cache";
  return folder / "smp" / "data" / "jargon.txt";
}

}  // namespace gpt
