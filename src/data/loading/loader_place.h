// data/loading/loader_place.h: where a loader stands, and what it says of that to be saved.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "data/order/position.h"
#include "smp/data/token_loader.h"

namespace smp::data {

/// What all replicas together have read.
struct LoaderPlace {
  Position position;
  TokenLoaderCounters counters;
};

/// What must be the same where a place is used again.
struct LoaderIdentity {
  std::uint64_t documents = 0;  ///< their fingerprint
  std::uint64_t tokens = 0;     ///< fingerprint of vocabulary and special tokens
  bool shuffle = false;
  std::uint64_t seed = 0;
};

/// Returns `place` as one line of JSON.
std::string place_text(const LoaderPlace& place, const LoaderIdentity& identity);
/// @param documents  how many there are
/// @throws UsageError  it is no such text, or of another identity
LoaderPlace read_place(std::string_view text, const LoaderIdentity& identity,
                       std::int64_t documents);

}  // namespace smp::data
