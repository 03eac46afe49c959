// server/protocol/number_list.h: whole numbers as bytes, for the parts of messages that most
// messages do not have. Threads: any.
#pragma once

#include <c10/util/ArrayRef.h>
#include <c10/util/DimVector.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "base/check.h"

namespace smp::server {

/// Appends numbers, 8 bytes each, to a text.
class NumberWriter {
 public:
  explicit NumberWriter(std::string& bytes) : bytes_(bytes) {}
  void put(std::int64_t number) {
    bytes_.append(reinterpret_cast<const char*>(&number), sizeof number);
  }
  /// Appends the count of `numbers`, then the numbers.
  void put(c10::IntArrayRef numbers) {
    put(static_cast<std::int64_t>(numbers.size()));
    for (const auto number : numbers) put(number);
  }

 private:
  std::string& bytes_;
};

/// Reads what NumberWriter has written. Its functions throw InternalError if the numbers end too
/// early, or are outside the bounds asked for.
class NumberReader {
 public:
  explicit NumberReader(std::string_view bytes) : bytes_(bytes) {}
  bool at_end() const noexcept { return bytes_.empty(); }
  std::string_view rest() const noexcept { return bytes_; }
  std::int64_t get() {
    std::int64_t number = 0;
    SMP_ASSERT(bytes_.size() >= sizeof number, "a list of numbers ends early");
    std::memcpy(&number, bytes_.data(), sizeof number);
    bytes_.remove_prefix(sizeof number);
    return number;
  }
  /// Reads a number from 0 to `count` - 1.
  std::size_t index(std::size_t count) {
    const auto number = get();
    SMP_ASSERT(number >= 0 && static_cast<std::uint64_t>(number) < count, number, " of ", count);
    return static_cast<std::size_t>(number);
  }
  at::DimVector list() {
    at::DimVector numbers(index(65));
    for (auto& number : numbers) number = get();
    return numbers;
  }

 private:
  std::string_view bytes_;
};

}  // namespace smp::server
