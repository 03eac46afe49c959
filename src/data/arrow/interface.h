// data/arrow/interface.h: what libsmp_arrow.so shows: C, so that nothing of either side's C++
// libraries is seen by the other.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

/// Takes bytes that a call hands over; they are gone when it returns.
struct SmpArrowSink {
  void (*put)(void* to, const char* bytes, std::size_t count);
  void* to;
};

/// Calls that fail say in `error`, as text, why. Nothing throws.
struct SmpArrowCalls {
  /// Reads the column `column` of the Arrow stream in `bytes`, which must outlive what is returned.
  /// @return a stream; nullptr: `error` says what is wrong, and where
  void* (*open)(const char* bytes, std::size_t size, const char* column, SmpArrowSink error);
  void (*close)(void* stream);
  std::int64_t (*rows)(const void* stream);
  /// Sets `text` and `size` to where the text of a row, which is below rows(), lies.
  bool (*text)(const void* stream, std::int64_t row, const char** text, std::size_t* size,
               SmpArrowSink error);
};

/// The only name that the library shows.
const SmpArrowCalls* smp_arrow_calls();
}
