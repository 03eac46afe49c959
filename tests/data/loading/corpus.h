// Random corpora in files, and the ten-line reference that says what a loader makes of them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "data/files/scratch_folder.h"
#include "data/order/position.h"
#include "smp/data/data.h"
#include "support/dice.h"

namespace smp::data {

/// Documents in files, of bytes as tokens, and what they are.
struct Corpus {
  std::vector<std::string> files;
  std::vector<std::string> texts;
  std::vector<bool> damaged;

  std::int64_t size() const { return static_cast<std::int64_t>(texts.size()); }
};

inline std::string random_text(Dice& dice, int shortest, int longest) {
  std::string text(static_cast<std::size_t>(dice.between(shortest, longest)), ' ');
  for (auto& c : text) c = static_cast<char>('a' + dice.below(26));
  return text;
}

/// Up to three files of lines, JSON lines, shards or one document; some lines damaged with
/// probability `damage`.
inline Corpus random_corpus(Dice& dice, const ScratchFolder& folder, double damage) {
  Corpus corpus;
  const int longest = dice.one_of({3, 12, 60});
  for (int file = dice.between(1, 3); file > 0; --file) {
    const auto name = std::to_string(file);
    const auto add = [&](std::string text, bool damaged) {
      corpus.texts.push_back(std::move(text));
      corpus.damaged.push_back(damaged);
    };
    const int count = dice.between(1, 25);
    std::string content;
    switch (dice.below(4)) {
      case 0:
        for (int i = 0; i < count; ++i) {
          const bool damaged = dice.chance(damage);
          add(random_text(dice, 1, longest), damaged);
          content += corpus.texts.back() + (damaged ? "\xff" : "") + "\n" +
                     (dice.chance(0.1) ? " \n" : "");
        }
        corpus.files.push_back(folder.write(name + ".txt", content));
        break;
      case 1:
        for (int i = 0; i < count; ++i) {
          const bool damaged = dice.chance(damage);
          add(random_text(dice, 0, longest), damaged);
          content += "{\"text\": \"" + corpus.texts.back() + (damaged ? "" : "\"") + "}\n";
        }
        corpus.files.push_back(folder.write(name + ".jsonl", content));
        break;
      case 2: {
        corpus.files.push_back(folder.path(name + ".tokens"));
        TokenShardWriter writer(corpus.files.back(), 257, 256);
        for (int i = 0; i < count; ++i) {
          add(random_text(dice, 0, longest), false);
          writer.append(
              std::vector<std::int32_t>(corpus.texts.back().begin(), corpus.texts.back().end()));
        }
        writer.finish();
        break;
      }
      default:
        add(random_text(dice, 1, longest), false);
        corpus.files.push_back(folder.write(name + ".txt", corpus.texts.back()));
    }
  }
  return corpus;
}

/// All that a loader reads, as one line of tokens.
struct TokenLine {
  std::vector<std::int64_t> tokens;
  std::vector<bool> begins;  ///< of a document
};

inline TokenLine reference_line(const Corpus& corpus, const TokenLoaderOptions& options) {
  TokenLine line;
  const DocumentOrder order(corpus.size(), options.shuffle, options.seed);
  for (std::int64_t epoch = 0; epoch < options.epochs; ++epoch) {
    for (std::int64_t i = 0; i < corpus.size(); ++i) {
      const auto document = static_cast<std::size_t>(order.document(epoch, i));
      if (corpus.damaged[document]) continue;
      const auto before = line.tokens.size();
      if (options.begin_of_document) line.tokens.push_back(*options.begin_of_document);
      for (const char c : corpus.texts[document]) line.tokens.push_back(c);
      line.tokens.push_back(256);
      line.begins.resize(line.tokens.size());
      line.begins[before] = true;
    }
  }
  return line;
}

/// One loader for each replica.
inline std::vector<TokenLoader> replicas_of(const Corpus& corpus, TokenLoaderOptions options) {
  std::vector<TokenLoader> loaders;
  for (options.replica = 0; options.replica < options.replicas; ++options.replica) {
    loaders.emplace_back(open_documents(corpus.files), options);
  }
  return loaders;
}

/// What the loaders, all replicas, have left, put together again: a line of tokens without what
/// fills up its end.
inline std::vector<std::int64_t> all_tokens(std::vector<TokenLoader>& loaders) {
  std::vector<std::int64_t> tokens;
  const auto before = loaders[0].counters().tokens;
  while (true) {
    std::size_t ended = 0;
    for (auto& loader : loaders) {
      const auto batch = loader.next();
      if (!batch) {
        ++ended;
        continue;
      }
      const auto* const first = batch->tokens.data_ptr<std::int64_t>();
      tokens.insert(tokens.end(), first, first + batch->tokens.numel());
    }
    if (ended == loaders.size()) break;
    EXPECT_EQ(ended, 0);  // all have the same number of steps
  }
  tokens.resize(static_cast<std::size_t>(loaders[0].counters().tokens - before));
  return tokens;
}

}  // namespace smp::data
