// data/loading/portion.h: some documents in a row, as tokens: what one thread makes at a time.
#pragma once

#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <vector>

#include "data/documents/document_source.h"
#include "data/order/position.h"
#include "smp/data/tokenizer.h"

namespace smp::data {

/// A document's tokens: in its shard, where nothing is read before tokens() of it, or in memory.
struct TokenizedDocument {
  const TokenSource* shard = nullptr;  ///< nullptr: the tokens are in the portion's `storage`
  std::int64_t begin = 0;              ///< first token, of the shard or of `storage`
  std::int64_t end = 0;
  bool skipped = false;  ///< it is damaged: nothing of it is read, its end neither
};

/// Documents of one epoch that follow each other in its order. Moves, but is not copied.
struct Portion {
  Position begin;  ///< of its first document; offset 0
  std::vector<TokenizedDocument> documents;
  std::vector<std::int32_t> storage;
  /// Thrown where the documents end, as the next one is damaged.
  std::exception_ptr error;

  /// Returns tokens `from` to `to` - 1 of document `number` of this portion.
  /// @throws UsageError  its shard is damaged there
  TokenSpan tokens(std::size_t number, std::int64_t from, std::int64_t to) const;
};

/// Makes portions. Threads: any number at the same time.
class PortionReader {
 public:
  struct Options {
    /// May be nullptr if no file holds text.
    const Tokenizer* tokenizer = nullptr;
    bool skip_damaged = false;
    std::int64_t epochs = 1;  ///< 0: without an end
  };
  /// All must outlive this.
  PortionReader(const DocumentSource& source, const DocumentOrder& order, Options options);

  /// Which documents a portion has.
  struct Range {
    Position begin;
    std::int64_t count;  ///< 0: there are none, all epochs are over
  };
  /// Returns what portion `number` has if portion 0 begins with document `start` of an order.
  Range range(const Position& start, std::int64_t number) const;
  Portion read(const Range& range) const;
  /// Reads portion `number`; nothing: there is none.
  std::optional<Portion> next(const Position& start, std::int64_t number) const;
  /// Where the first document of `range` begins, for messages.
  std::string place(const Range& range) const;

 private:
  void append(std::int64_t number, Portion& portion) const;
  TokenizedDocument tokenized(const DocumentSource::Found& found, Portion& portion) const;

  const DocumentSource& source_;
  const DocumentOrder& order_;
  Options options_;
  std::int64_t documents_of_portion_;
};

}  // namespace smp::data
