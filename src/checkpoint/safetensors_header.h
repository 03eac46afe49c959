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

namespace smp::checkpoint {

using Metadata = std::map<std::string, std::string>;

/// Bytes of the length before the header, and the longest header that is read, as in the reference
/// implementation.
inline constexpr std::uint64_t kLengthBytes = 8;
inline constexpr std::uint64_t kLongestHeader = 100'000'000;

/// Of an element of the format; nothing if the format has none for the LibTorch type.
std::optional<std::string_view> dtype_name(c10::ScalarType dtype) noexcept;
/// Undefined if LibTorch has none for the name.
c10::ScalarType dtype_of_name(std::string_view name) noexcept;

struct PlacedTensor {
  TensorInfo info;
  std::uint64_t begin = 0;  ///< bytes from the start of the data
  std::uint64_t end = 0;
};

struct SafetensorsHeader {
  std::vector<PlacedTensor> tensors;  ///< in the order of the header
  Metadata metadata;
  std::uint64_t data_bytes = 0;

  /// Gives each tensor its place: large elements first, so that every one is aligned.
  /// @throws UnsupportedError  a dtype that the format does not have.
  static SafetensorsHeader lay_out(std::vector<TensorInfo> tensors, Metadata metadata);
  /// Checks everything: JSON, types, sizes that agree, places without overlap or gap that fill the
  /// data. @param text  without the length  @param data_bytes  what follows it in the file
  /// @param name  of the file, for messages  @throws UsageError
  static SafetensorsHeader parse(std::string_view text, std::uint64_t data_bytes,
                                 const std::string& name);
  /// With spaces at its end, so that the data is aligned.
  std::string text() const;
};

}  // namespace smp::checkpoint
