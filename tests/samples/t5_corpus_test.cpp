// The T5 sample's data: span corruption loses nothing, and a batch depends on (seed, step) only.
#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <string>

#include "t5/corpus.h"

namespace t5 {
namespace {

using Vocabulary = ByteVocabulary;

std::string sample_text() {
  std::string text;
  for (int i = 0; i < 4000; ++i) text += static_cast<char>('a' + (i * i + i / 7) % 26);
  return text;
}

bool is_sentinel(int64_t token) { return token >= Vocabulary::kFirstSentinel; }

std::vector<int64_t> row_of(const torch::Tensor& tokens, int64_t row) {
  const torch::Tensor values = tokens[row].contiguous();
  return {values.data_ptr<int64_t>(), values.data_ptr<int64_t>() + values.numel()};
}

/// Puts the hidden spans back where their sentinels stand.
std::string restore(const std::vector<int64_t>& input_ids, const std::vector<int64_t>& labels) {
  std::string text;
  const auto append_bytes = [&](auto from, auto end) {
    for (; from != end && !is_sentinel(*from) && *from != Vocabulary::kEnd; ++from) {
      text += static_cast<char>(*from - Vocabulary::kFirstByte);
    }
  };
  for (auto token = input_ids.begin(); token != input_ids.end(); ++token) {
    if (is_sentinel(*token)) {
      append_bytes(std::find(labels.begin(), labels.end(), *token) + 1, labels.end());
    } else {
      append_bytes(token, token + 1);
    }
  }
  return text;
}

TEST(T5Corpus, ReplacesSpansBySentinels) {
  const CorruptedRow row = corrupt("abcdef", {2, 1, 1, 2});
  const auto byte = [](char c) { return Vocabulary::byte_token(static_cast<unsigned char>(c)); };
  const int64_t first = Vocabulary::kFirstSentinel;
  EXPECT_EQ(row.input_ids, (std::vector<int64_t>{byte('a'), byte('b'), first, byte('d'), first + 1,
                                                 Vocabulary::kEnd}));
  EXPECT_EQ(row.labels, (std::vector<int64_t>{first, byte('c'), first + 1, byte('e'), byte('f'),
                                              Vocabulary::kEnd}));
}

TEST(T5Corpus, KeepsBytesAbove127) {
  const std::string text = "\xE2\x95\x90\xFF";
  const CorruptedRow row = corrupt(text, {2, 2});
  EXPECT_EQ(row.input_ids[0], Vocabulary::kFirstByte + 0xE2);
  EXPECT_EQ(restore(row.input_ids, row.labels), text);
}

TEST(T5Corpus, EveryRowIsAWindowOfTheText) {
  const std::string text = sample_text();
  const SpanCorruption corruption;
  const Corpus corpus(text, corruption);
  const Batch batch = corpus.batch(1, 0, 50);
  EXPECT_EQ(batch.input_ids.sizes().vec(), (std::vector<int64_t>{50, corruption.input_length()}));
  EXPECT_EQ(batch.labels.sizes().vec(), (std::vector<int64_t>{50, corruption.target_length()}));
  for (int64_t row = 0; row < 50; ++row) {
    const auto window = restore(row_of(batch.input_ids, row), row_of(batch.labels, row));
    EXPECT_EQ(window.size(), static_cast<size_t>(corruption.window_bytes));
    EXPECT_NE(text.find(window), std::string::npos) << window;
  }
}

TEST(T5Corpus, HidesTheShareThatT5Hides) {
  const SpanCorruption corruption{.window_bytes = 512, .mean_span_bytes = 3.0};
  EXPECT_EQ(corruption.num_hidden_bytes(), 77);
  EXPECT_EQ(corruption.num_spans(), 26);
  EXPECT_EQ(corruption.input_length() + corruption.target_length(), 512 + 2 * 26 + 2);
}

TEST(T5Corpus, BatchDependsOnSeedAndStepOnly) {
  const Corpus corpus(sample_text(), {});
  const Batch batch = corpus.batch(3, 11, 4);
  EXPECT_TRUE(batch.input_ids.equal(corpus.batch(3, 11, 4).input_ids));
  EXPECT_FALSE(batch.input_ids.equal(corpus.batch(3, 12, 4).input_ids));
  EXPECT_FALSE(batch.input_ids.equal(corpus.batch(4, 11, 4).input_ids));
  EXPECT_TRUE(batch.labels.slice(0, 0, 2).equal(corpus.batch(3, 11, 2).labels));
}

TEST(T5Corpus, MeasuresTheUnigramEntropy) {
  const SpanCorruption short_window{.window_bytes = 4};
  EXPECT_DOUBLE_EQ(Corpus("aaaaaaaa", short_window).unigram_entropy(), 0.0);
  EXPECT_DOUBLE_EQ(Corpus("abababab", short_window).unigram_entropy(), std::log(2.0));
}

TEST(T5Corpus, RefusesATextShorterThanAWindow) {
  EXPECT_THROW(Corpus("too short", {}), std::invalid_argument);
}

TEST(T5Corpus, NamesThePathThatIsMissing) {
  try {
    Corpus::read("/no/such/text", {});
    FAIL() << "a missing file was accepted";
  } catch (const std::runtime_error& error) {
    EXPECT_NE(std::string(error.what()).find("/no/such/text"), std::string::npos);
  }
}

}  // namespace
}  // namespace t5
