// checkpoint/safetensors_header.h: the header of a safetensors file: names, types, shapes and
// places of its tensors.
//
//     8 bytes, little-endian    length N of the header
//     N bytes                   {"__metadata__": {text: text}, NAME: {"dtype": "F32",
//                               "shape": [2, 3], "data_offsets": [begin, end]}, ...}, then spaces
//     the rest                  data; offsets count from its start, and leave no gap
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/tensor_info.h"

namespace smp::checkpoints {

using Metadata = std::map<std::string, std::string>;

/// The bytes of the length before the header, and the longest header that is read, as in the
/// reference implementation.
inline constexpr std::uint64_t kLengthBytes = 8;
inline constexpr std::uint64_t kLongestHeader = 100'000'000;

/// Returns the format's name of a dtype ("F32"), or nothing if the format has none for it.
std::optional<std::string_view> dtype_name(c10::ScalarType dtype) noexcept;
/// Returns the dtype of a name in the format, or Undefined if LibTorch has none for it.
c10::ScalarType dtype_of_name(std::string_view name) noexcept;

struct PlacedTensor {
  /// Name, dtype and shape as LibTorch has them: two numbers of four bits (F4) are one element.
  TensorInfo info;
  std::uint64_t begin = 0;  ///< bytes from the start of the data
  std::uint64_t end = 0;
  /// Why the values cannot become a tensor, or empty: LibTorch has no such type. `info` then has no
  /// dtype, and the shape of the file.
  std::string unreadable = {};
};

struct SafetensorsHeader {
  std::vector<PlacedTensor> tensors;  ///< in the order of the header
  Metadata metadata;
  std::uint64_t data_bytes = 0;

  /// Assigns each tensor its place: large elements first, so that every one is aligned.
  /// @throws UnsupportedError  a dtype that the format does not have.
  /// @throws UsageError        a tensor is called __metadata__.
  static SafetensorsHeader lay_out(std::vector<TensorInfo> tensors, Metadata metadata);
  /// Parses a header and checks everything: JSON, sizes that agree, places without overlap or gap
  /// that fill the data. Like other readers, it lets pass what they do: spaces before the header,
  /// no metadata or null, members that it does not know.
  /// @param text        the header without the length before it
  /// @param data_bytes  bytes that follow the header in the file
  /// @param name        the file, for messages
  /// @throws UsageError  it is damaged.
  static SafetensorsHeader parse(std::string_view text, std::uint64_t data_bytes,
                                 const std::string& name);
  /// Returns the header as JSON, padded with spaces to a multiple of 8 bytes so that the data is
  /// aligned.
  std::string text() const;
};

}  // namespace smp::checkpoints
