// hf/published_files.h: the files of a published model under canonical names.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/first_difference.h"
#include "checkpoint/safetensors_set.h"
#include "smp/hf.h"

namespace smp::hf {

/// Threads: one at a time.
class PublishedFiles {
 public:
  /// Opens what `path` names. @throws UsageError  as SafetensorsSet; two tensors have one name.
  PublishedFiles(const std::string& path, Family family);

  Family family() const noexcept { return family_; }
  const std::string& path() const noexcept { return path_; }
  std::size_t size() const noexcept { return names_.size(); }
  /// The canonical name of tensor `number`.
  const std::string& name(std::size_t number) const { return names_.at(number); }
  const checkpoints::SafetensorsSet::Entry& entry(std::size_t number) const {
    return files_.tensors().at(number);
  }
  /// Returns the number of the tensor of that canonical name, if there is one.
  std::optional<std::size_t> find(std::string_view name) const;
  /// Returns that of the tensor, or of another one that it is tied to: what is always one with it
  /// first.
  std::optional<std::size_t> find_tied(const std::string& name) const;
  at::Tensor read(std::size_t number) const { return files_.read(number); }
  void read_into(std::size_t number, const at::Tensor& target) const {
    files_.read_into(number, target);
  }
  /// Throws what read() would.
  void check(std::size_t number) const { files_.check(number); }
  /// Returns where two tensors differ, if they do, shapes included, as a text.
  std::optional<std::string> difference(std::size_t first, std::size_t second) const;

 private:
  Family family_;
  std::string path_;
  checkpoints::SafetensorsSet files_;
  std::vector<std::string> names_;
  std::map<std::string, std::size_t, std::less<>> numbers_;
};

}  // namespace smp::hf
