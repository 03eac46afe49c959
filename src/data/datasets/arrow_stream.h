// data/datasets/arrow_stream.h: the texts of one Arrow file as `datasets` writes it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "data/arrow/interface.h"
#include "data/files/mapped_input.h"

namespace smp::data {

/// A column of texts in a file that is an Arrow stream. Opening reads what is said of each batch of
/// rows (1,000 if nobody chose otherwise), no text. Threads: any.
class ArrowStream {
 public:
  /// @throws UsageError        it cannot be read, is damaged or cut short, or has no such column:
  ///                           names file and byte
  /// @throws UnsupportedError  this build has no Arrow; says what to install
  ArrowStream(const std::string& path, const std::string& column);

  const MappedInput& file() const noexcept { return file_; }
  std::int64_t rows() const;
  /// The text of a row, in the mapped file unless that is compressed.
  /// @throws UsageError  it is null, or damaged: says so, without file and row
  std::string_view text(std::int64_t row) const;

 private:
  const SmpArrowCalls& calls_;  // first: without Arrow no file matters
  MappedInput file_;
  std::unique_ptr<void, void (*)(void*)> stream_;
};

}  // namespace smp::data
