// data/order/position.h: a place in all that a loader will ever read, and the order it reads in.
#pragma once

#include <cstdint>

#include "data/order/permutation.h"

namespace smp::data {

/// Before which token a reader stands.
struct Position {
  std::int64_t epoch = 0;
  std::int64_t index = 0;   ///< in the epoch's order of documents
  std::int64_t offset = 0;  ///< tokens of that document that are behind it, begin and end counted

  bool operator==(const Position&) const = default;
};

/// Which document comes when. Threads: any.
class DocumentOrder {
 public:
  DocumentOrder(std::int64_t documents, bool shuffle, std::uint64_t seed)
      : documents_(documents), shuffle_(shuffle), seed_(seed) {}

  std::int64_t documents() const noexcept { return documents_; }
  /// The document at place `index` of epoch `epoch`.
  std::int64_t document(std::int64_t epoch, std::int64_t index) const noexcept;

 private:
  std::int64_t documents_;
  bool shuffle_;
  std::uint64_t seed_;
};

}  // namespace smp::data
