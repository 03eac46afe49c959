// checkpoint/safetensors_file.h: reading and writing safetensors files a tensor at a time.
// Threads: one at a time.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <string>
#include <vector>

#include "base/files.h"
#include "base/replacement_file.h"
#include "checkpoint/safetensors_header.h"

namespace smp::checkpoint {

/// The entry of __metadata__ with which our files notice damage: XXH64 in hexadecimal digits, first
/// of the header with zeros in this place, then of each tensor in the order of the header.
inline constexpr const char* kChecksumKey = "smp.xxh64";

/// An open file. Memory: its header.
class SafetensorsReader {
 public:
  /// Reads and checks the header.
  /// @throws UsageError        not readable, not complete, or damaged: the text says where.
  /// @throws UnsupportedError  a dtype that LibTorch does not have.
  explicit SafetensorsReader(const std::string& path);

  const std::vector<PlacedTensor>& tensors() const { return header_.tensors; }
  /// Without the checksums.
  const Metadata& metadata() const { return header_.metadata; }
  /// A new tensor. @throws UsageError  the values are damaged, or can no longer be read.
  at::Tensor read(std::size_t index) const;

 private:
  void take_checksums(std::string text);

  base::InputFile file_;
  SafetensorsHeader header_;
  std::uint64_t data_begin_ = 0;
  std::vector<std::uint64_t> checksums_;  // of each tensor, or empty
};

/// A file that appears under its name when it is complete.
class SafetensorsWriter {
 public:
  /// @throws ResourceError     the file cannot be made.
  /// @throws UnsupportedError  a dtype that the format does not have.
  SafetensorsWriter(const std::string& path, std::vector<TensorInfo> tensors, Metadata metadata);

  /// The values of tensor `index`, in any order. @throws ResourceError
  void write(std::size_t index, const at::Tensor& tensor);
  /// All tensors are written: the file takes its name. @throws ResourceError
  void commit();

 private:
  SafetensorsHeader header_;
  std::vector<std::uint64_t> checksums_;
  std::vector<bool> written_;
  std::uint64_t data_begin_;
  base::ReplacementFile file_;
};

}  // namespace smp::checkpoint
