// samples/t5/corpus.h: text as bytes, and T5's span corruption objective on it.
//
// B rows of a batch, S input length, T target length.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace t5 {

/// The vocabulary of ByT5: pad 0, end 1, unknown 2, the 256 bytes, then 125 sentinels.
struct ByteVocabulary {
  static constexpr int64_t kPad = 0;
  static constexpr int64_t kEnd = 1;
  static constexpr int64_t kFirstByte = 3;
  static constexpr int64_t kFirstSentinel = kFirstByte + 256;
  static constexpr int64_t kNumSentinels = 125;
  static constexpr int64_t kSize = kFirstSentinel + kNumSentinels;

  static int64_t byte_token(unsigned char byte) { return kFirstByte + byte; }
  static int64_t sentinel_token(int64_t span) { return kFirstSentinel + span; }
};

/// How much of a window of text is hidden: T5's shares. T5 hides spans of 3 word pieces on average,
/// which are about 12 bytes.
struct SpanCorruption {
  int64_t window_bytes = 128;
  double noise_density = 0.15;    ///< share of the bytes that are hidden
  double mean_span_bytes = 12.0;  ///< mean length of a hidden span

  int64_t num_hidden_bytes() const;
  int64_t num_spans() const;
  int64_t input_length() const;   ///< S: what stays, a sentinel a span, the end
  int64_t target_length() const;  ///< T: a sentinel and the hidden bytes of each span, the end
};

/// Rows to train on; no row is padded, because all windows have the same length.
struct Batch {
  torch::Tensor input_ids;  ///< [B, S] int64
  torch::Tensor labels;     ///< [B, T] int64
};

/// A text in memory, cut into batches that depend on (seed, step) and on nothing else.
class Corpus {
 public:
  /// Throws std::invalid_argument if the text is shorter than one window, or a window has more
  /// spans than there are sentinels.
  Corpus(std::string text, SpanCorruption corruption);

  /// Reads a file, or all regular files below a folder in the order of their names. Throws
  /// std::runtime_error if nothing is there or it cannot be read.
  static Corpus read(const std::filesystem::path& file_or_folder, SpanCorruption corruption);

  /// The rows of one step: windows at random places of the text, corrupted at random.
  Batch batch(uint64_t seed, int64_t step, int64_t rows) const;

  /// Nats a byte that a model needs which knows only how often each byte occurs.
  double unigram_entropy() const;

  int64_t size_bytes() const { return static_cast<int64_t>(text_.size()); }
  const SpanCorruption& corruption() const { return corruption_; }

 private:
  std::string text_;
  SpanCorruption corruption_;
};

/// The text that `samples/t5/fetch_text.sh` leaves in the user's cache folder.
std::filesystem::path default_text_path();

/// One row: `window` with its spans replaced by sentinels, and the spans that are missing.
/// `span_lengths` alternates kept and hidden lengths, beginning with kept, and adds up to the
/// length of the window.
struct CorruptedRow {
  std::vector<int64_t> input_ids;
  std::vector<int64_t> labels;
};
CorruptedRow corrupt(std::string_view window, const std::vector<int64_t>& span_lengths);

}  // namespace t5
