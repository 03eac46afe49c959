// samples/t5/corpus.cpp: reads text, cuts windows, corrupts spans.
#include "corpus.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <random>
#include <stdexcept>

namespace t5 {
namespace {

namespace fs = std::filesystem;

/// Random numbers for one row. The standard fixes the engine's output but not that of its
/// distributions, so the same (seed, step, row) gives the same row with every library.
class RowRandom {
 public:
  RowRandom(uint64_t seed, int64_t step, int64_t row) {
    std::seed_seq key{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32),
                      static_cast<uint32_t>(step), static_cast<uint32_t>(row)};
    engine_.seed(key);
  }

  /// An integer in [0, bound).
  int64_t below(int64_t bound) { return static_cast<int64_t>(engine_() % bound); }

 private:
  std::mt19937_64 engine_;
};

/// `total` cut into `parts` lengths of at least one, every way equally likely.
std::vector<int64_t> random_lengths(int64_t total, int64_t parts, RowRandom& random) {
  std::vector<int64_t> cuts{0, total};
  while (static_cast<int64_t>(cuts.size()) < parts + 1) {
    const int64_t cut = 1 + random.below(total - 1);
    if (std::find(cuts.begin(), cuts.end(), cut) == cuts.end()) cuts.push_back(cut);
  }
  std::sort(cuts.begin(), cuts.end());
  std::vector<int64_t> lengths;
  for (size_t i = 1; i < cuts.size(); ++i) lengths.push_back(cuts[i] - cuts[i - 1]);
  return lengths;
}

/// Kept, hidden, kept, hidden, ...: T5's random spans noise mask as lengths.
std::vector<int64_t> random_spans(const SpanCorruption& corruption, RowRandom& random) {
  const int64_t num_spans = corruption.num_spans();
  const int64_t num_kept = corruption.window_bytes - corruption.num_hidden_bytes();
  const auto hidden = random_lengths(corruption.num_hidden_bytes(), num_spans, random);
  const auto kept = random_lengths(num_kept, num_spans, random);
  std::vector<int64_t> lengths;
  for (int64_t span = 0; span < num_spans; ++span) {
    lengths.push_back(kept[span]);
    lengths.push_back(hidden[span]);
  }
  return lengths;
}

std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot read the text file " + path.string());
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::vector<fs::path> files_below(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

void copy_row(const std::vector<int64_t>& ids, torch::Tensor row) {
  std::copy(ids.begin(), ids.end(), row.data_ptr<int64_t>());
}

}  // namespace

int64_t SpanCorruption::num_hidden_bytes() const {
  const auto hidden = std::llround(static_cast<double>(window_bytes) * noise_density);
  return std::clamp<int64_t>(hidden, 1, window_bytes - 1);
}

int64_t SpanCorruption::num_spans() const {
  const auto spans = std::llround(static_cast<double>(num_hidden_bytes()) / mean_span_bytes);
  return std::max<int64_t>(spans, 1);
}

int64_t SpanCorruption::input_length() const {
  return window_bytes - num_hidden_bytes() + num_spans() + 1;
}

int64_t SpanCorruption::target_length() const { return num_hidden_bytes() + num_spans() + 1; }

Corpus::Corpus(std::string text, SpanCorruption corruption)
    : text_(std::move(text)), corruption_(corruption) {
  if (corruption.num_spans() > ByteVocabulary::kNumSentinels) {
    throw std::invalid_argument("a window of " + std::to_string(corruption.window_bytes) +
                                " bytes has more hidden spans than there are sentinels");
  }
  if (size_bytes() < corruption.window_bytes) {
    throw std::invalid_argument("the text has " + std::to_string(size_bytes()) +
                                " bytes, fewer than one window of " +
                                std::to_string(corruption.window_bytes));
  }
}

Corpus Corpus::read(const fs::path& file_or_folder, SpanCorruption corruption) {
  if (!fs::exists(file_or_folder)) {
    const bool is_default = file_or_folder == default_text_path();
    throw std::runtime_error("there is no text at " + file_or_folder.string() +
                             (is_default ? "; samples/t5/fetch_text.sh puts it there" : ""));
  }
  if (!fs::is_directory(file_or_folder)) return Corpus(read_file(file_or_folder), corruption);
  std::string text;
  for (const auto& file : files_below(file_or_folder)) text += read_file(file);
  return Corpus(std::move(text), corruption);
}

Batch Corpus::batch(uint64_t seed, int64_t step, int64_t rows) const {
  Batch batch{torch::empty({rows, corruption_.input_length()}, torch::kLong),
              torch::empty({rows, corruption_.target_length()}, torch::kLong)};
  for (int64_t row = 0; row < rows; ++row) {
    RowRandom random(seed, step, row);
    const int64_t start = random.below(size_bytes() - corruption_.window_bytes + 1);
    const auto window = std::string_view(text_).substr(start, corruption_.window_bytes);
    const CorruptedRow corrupted = corrupt(window, random_spans(corruption_, random));
    copy_row(corrupted.input_ids, batch.input_ids[row]);
    copy_row(corrupted.labels, batch.labels[row]);
  }
  return batch;
}

double Corpus::unigram_entropy() const {
  std::array<int64_t, 256> counts{};
  for (const char byte : text_) ++counts[static_cast<unsigned char>(byte)];
  double entropy = 0.0;
  for (const int64_t count : counts) {
    if (count == 0) continue;
    const double share = static_cast<double>(count) / static_cast<double>(size_bytes());
    entropy -= share * std::log(share);
  }
  return entropy;
}

CorruptedRow corrupt(std::string_view window, const std::vector<int64_t>& span_lengths) {
  CorruptedRow row;
  size_t position = 0;
  for (size_t span = 0; span < span_lengths.size(); ++span) {
    const bool hidden = span % 2 == 1;
    auto& destination = hidden ? row.labels : row.input_ids;
    if (hidden) {
      const int64_t sentinel = ByteVocabulary::sentinel_token(static_cast<int64_t>(span / 2));
      row.input_ids.push_back(sentinel);
      row.labels.push_back(sentinel);
    }
    for (int64_t i = 0; i < span_lengths[span]; ++i) {
      destination.push_back(ByteVocabulary::byte_token(window[position++]));
    }
  }
  row.input_ids.push_back(ByteVocabulary::kEnd);
  row.labels.push_back(ByteVocabulary::kEnd);
  return row;
}

fs::path default_text_path() {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  const fs::path folder =
      cache && *cache ? fs::path(cache) : fs::path(home ? home : ".") / ".cache";
  return folder / "smp" / "data" / "jargon.txt";
}

}  // namespace t5
