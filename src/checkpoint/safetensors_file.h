// checkpoint/safetensors_file.h: reading and writing safetensors files a tensor at a time.
// Threads: one at a time.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "alive/writing.h"
#include "base/input_file.h"
#include "base/replacement_file.h"
#include "checkpoint/safetensors_header.h"

namespace smp::checkpoints {

/// The __metadata__ key of the checksums with which our files notice damage: XXH64 in hexadecimal
/// digits, first of the header with zeros in this place, then of each tensor in the order of the
/// header.
inline constexpr const char* kChecksumKey = "smp.xxh64";

/// An open file that is read tensor by tensor; it keeps only the header in memory.
class SafetensorsReader {
 public:
  /// Opens the file, and reads and checks its header.
  /// @throws UsageError  it is not readable, not complete or damaged; the text says where.
  explicit SafetensorsReader(const std::string& path);

  const std::string& path() const { return file_.path(); }
  const base::InputFile::Identity& identity() const { return file_.identity(); }
  const std::vector<PlacedTensor>& tensors() const { return header_.tensors; }
  /// The metadata of the file, without the entry of the checksums.
  const Metadata& metadata() const { return header_.metadata; }
  /// Reads tensors()[index] into a new CPU tensor.
  /// @throws UsageError        the values are damaged, or can no longer be read.
  /// @throws UnsupportedError  LibTorch has no such tensors (PlacedTensor::unreadable).
  at::Tensor read(std::size_t index) const;
  /// Reads it into `target`: contiguous, in host memory, of its shape; values take its type as
  /// Tensor::copy_() has it. Their checksum is not computed again after check(), unless the file
  /// has changed since it was opened. On LibTorch's threads, if there is much. @throws as read()
  void read_into(std::size_t index, const at::Tensor& target) const;
  /// Throws what read() would, and keeps nothing but that it was here. @throws as read()
  void check(std::size_t index) const;
  /// Returns the checksum that the file has of the values of tensors()[index], which depends on
  /// nothing else; nothing if it has none.
  std::optional<std::uint64_t> stored_checksum(std::size_t index) const {
    return checksums_.empty() ? std::nullopt : std::optional(checksums_.at(index));
  }

 private:
  void take_checksums(std::string text);
  const PlacedTensor& readable(std::size_t index) const;
  void require_checksum(std::size_t index, std::uint64_t sum) const;
  void read_converted(std::size_t index, const at::Tensor& target) const;
  /// Reads the values, which are not empty, a part at a time to where `place` has those from a byte
  /// on, and tells `use` of that byte and their number; checks them.
  void read_parts(std::size_t index, const std::function<char*(std::uint64_t)>& place,
                  const std::function<void(std::uint64_t, std::size_t)>& use) const;
  [[noreturn]] void refuse_truth_values(const PlacedTensor& placed) const;

  base::InputFile file_;
  SafetensorsHeader header_;
  std::uint64_t data_begin_ = 0;
  std::vector<std::uint64_t> checksums_;  // of each tensor, or empty
  mutable std::vector<bool> checked_;     // by tensor
};

/// Writes a file, which appears under its name only when it is complete.
class SafetensorsWriter {
 public:
  /// Lays out the file for `tensors`; their values follow by write().
  /// @throws ResourceError     the file cannot be made.
  /// @throws UnsupportedError  a dtype that the format does not have.
  SafetensorsWriter(const std::string& path, std::vector<TensorInfo> tensors, Metadata metadata);

  /// Writes the values of tensor `index`; any order will do. @throws ResourceError
  void write(std::size_t index, const at::Tensor& tensor);
  /// Completes the file, which takes its name, after all tensors are written. @throws ResourceError
  void commit();

 private:
  const base::Writing writing_;
  SafetensorsHeader header_;
  std::vector<std::uint64_t> checksums_;
  std::vector<bool> written_;
  std::uint64_t data_begin_;
  base::ReplacementFile file_;
};

}  // namespace smp::checkpoints
