// hf/incoming.h: a published model's tensors as those of a model.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/exchange.h"
#include "checkpoint/tensor_info.h"
#include "hf/name_map.h"
#include "hf/published_files.h"

namespace smp::hf {

/// Which tensors of files a model's are made of. Only names and shapes are looked at, and values of
/// tensors that are tied in the model.
class Incoming {
 public:
  /// @param own_names  those of the model
  /// @throws UsageError        a tensor cannot be divided as the rules want. (Ties are compared by
  ///                           require_ties().)
  /// @throws UnsupportedError  one that is needed cannot be read.
  Incoming(std::shared_ptr<const PublishedFiles> files, const NameMap& names,
           const std::vector<std::string>& own_names);

  /// What the files have under names of the model.
  const std::vector<checkpoints::TensorInfo>& tensors() const noexcept { return tensors_; }
  /// What the model should have and has not.
  const std::vector<checkpoints::TensorInfo>& unexpected() const noexcept { return unexpected_; }
  /// Canonical names of what it need not have.
  const std::vector<std::string>& ignored() const noexcept { return ignored_; }
  /// Reads tensors()[index].
  at::Tensor read(std::size_t index) const;
  /// Reads it into `target`, as SafetensorsReader::read_into() does.
  void read_into(std::size_t index, const at::Tensor& target) const;
  /// Throws what read() would.
  void check(std::size_t index) const { files_->check(sources_.at(index).number); }

  /// Throws unless all tensors that the model has once are equal in the files. Reads them.
  void require_ties() const;

 private:
  struct Source {
    std::size_t number;  // in the files
    Part part;
  };
  void add(const std::string& own_name);
  void sort_left_over(std::size_t number);

  std::shared_ptr<const PublishedFiles> files_;
  NameMap names_;
  std::vector<checkpoints::TensorInfo> tensors_;
  std::vector<Source> sources_;
  std::vector<bool> used_;  // by number in the files
  std::vector<checkpoints::TensorInfo> unexpected_;
  std::vector<std::string> ignored_;
  struct Copy {
    std::size_t number, of;
    bool may_differ;
  };
  std::vector<Copy> copies_;  // of tensors that the model has once
  mutable std::optional<std::size_t> turned_number_;
  mutable at::Tensor turned_;  // the tensor that was read last and is shared by several
};

/// Returns the names that a model with these files has under `names`: tied tensors once.
std::vector<std::string> names_in(const PublishedFiles& files, const NameMap& names);

}  // namespace smp::hf
