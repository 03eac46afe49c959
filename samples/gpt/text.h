// samples/gpt/text.h: bytes of a text, and windows of it.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <filesystem>
#include <string>

namespace gpt {

/// Rows to train on.
struct Batch {
  torch::Tensor tokens;  ///< [rows, T] int64, bytes
  torch::Tensor next;    ///< [rows, T] int64, what follows each

  Batch to(torch::Device device) const { return {tokens.to(device), next.to(device)}; }
};

/// A text in memory.
class Text {
 public:
  explicit Text(std::string bytes) : bytes_(std::move(bytes)) {}
  /// @throws std::runtime_error  the file cannot be read.
  static Text read(const std::filesystem::path& file);

  /// Rows `first` to `first + rows - 1` of a step's batch: windows of length + 1 bytes at places
  /// that depend on seed, step and the number of the row, and on nothing else. So ranks that share
  /// the rows of a batch read what one process reads.
  /// @throws std::invalid_argument  the text is shorter than a window.
  Batch batch(std::uint64_t seed, std::int64_t step, std::int64_t first, std::int64_t rows,
              std::int64_t length) const;

  /// Nats a byte that a model needs which knows only how often each byte occurs.
  double unigram_entropy() const;
  std::int64_t size_bytes() const { return static_cast<std::int64_t>(bytes_.size()); }

 private:
  std::string bytes_;
};

/// `bytes` for a terminal: '?' stands for what is neither printed nor the end of a line.
std::string printable(std::string bytes);

/// The text that samples/t5/fetch_text.sh leaves in the user's cache folder.
std::filesystem::path default_text();

}  // namespace gpt
