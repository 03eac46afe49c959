// checkpoint/safetensors_set.h: the tensors of one model, in one file or in several.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/aliases.h"
#include "checkpoint/safetensors_file.h"

namespace smp::checkpoints {

/// The tensors of a safetensors file, of the files that an index lists
/// (model.safetensors.index.json of Hugging Face), or of a folder with one of them. Keeps headers
/// in memory, and the files open. Threads: one at a time.
class SafetensorsSet {
 public:
  /// A tensor, and where it is.
  struct Entry {
    TensorInfo info;
    /// Why it cannot be read, or empty: LibTorch has no such type, or the file holds a part of it.
    std::string unreadable;
    const SafetensorsReader* file;
    std::size_t index;  ///< in the file
  };

  /// Opens and checks what `path` names.
  /// @throws UsageError  a file is not readable, not complete or damaged; index and files, or both
  ///                     ways in which a folder holds a model, disagree. The text names both.
  explicit SafetensorsSet(const std::string& path);

  const std::vector<Entry>& tensors() const { return tensors_; }
  /// The metadata of all files, without our own entries; the first counts.
  const Metadata& metadata() const { return metadata_; }
  /// Further names of tensors.
  const Aliases& aliases() const { return aliases_; }
  /// Reads tensors()[number] into a new CPU tensor. @throws as SafetensorsReader::read()
  at::Tensor read(std::size_t number) const;
  /// Reads it into `target`. @throws as SafetensorsReader::read_into()
  void read_into(std::size_t number, const at::Tensor& target) const;
  /// Throws what read() would.
  void check(std::size_t number) const;
  /// What tells the files from others: of each in turn.
  std::vector<base::InputFile::Identity> identities() const;

 private:
  const Entry& readable(std::size_t number) const;
  void open_folder(const std::string& folder);
  void open_index(const std::string& path);
  const SafetensorsReader& open(const std::string& path);
  void add_tensors_of(const SafetensorsReader& file);

  std::vector<std::unique_ptr<SafetensorsReader>> files_;
  std::vector<Entry> tensors_;
  Metadata metadata_;
  Aliases aliases_;
};

}  // namespace smp::checkpoints
