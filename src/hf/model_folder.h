// hf/model_folder.h: the files of a model in a folder, which change from the old model to the new
// one at once.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/safetensors_file.h"

namespace smp::hf {

/// Writes model.safetensors, or shards and model.safetensors.index.json.
///
/// Whoever reads the folder meanwhile finds the tensors of the old model or of the new one, never
/// a mixture (config.json is replaced just before them): shards
/// that would replace old ones have other names until the index names them, and what is old is
/// removed at last. Threads: one at a time.
class ModelFolder {
 public:
  /// Lays out the files; their values follow by write(). Makes the folder.
  /// @throws ResourceError, UnsupportedError  as SafetensorsWriter
  ModelFolder(std::string folder, const std::vector<checkpoints::TensorInfo>& tensors,
              std::uint64_t shard_bytes, checkpoints::Metadata metadata);
  /// Removes new files, unless commit() was called.
  ~ModelFolder();
  ModelFolder(const ModelFolder&) = delete;
  ModelFolder& operator=(const ModelFolder&) = delete;

  /// Writes tensor `index`; any order will do. @throws ResourceError
  void write(std::size_t index, const at::Tensor& values);
  /// Puts the new model, once it is written, in the place of the old one.
  /// @param config  the text of config.json; empty: the one that is there stays
  /// @throws ResourceError  the old model stays, its config.json too
  void commit(const std::string& config);

  /// Names in the folder.
  std::vector<std::string> files() const;

 private:
  struct Shard {
    std::vector<checkpoints::TensorInfo> tensors;
    std::unique_ptr<checkpoints::SafetensorsWriter> writer;  // from the first write to the last
    std::size_t written = 0;
    std::string name, written_as;
  };
  struct Place {
    std::size_t shard, index;
  };
  std::string path(const std::string& name) const;
  std::string index_text(std::string Shard::*name) const;
  std::set<std::string> old_shards() const;
  void publish_shards(const std::set<std::string>& old, const std::string& text);
  void publish_single(const std::set<std::string>& old, const std::string& text);
  void take_final_names();
  void warn_of_others() const;

  const std::string folder_;
  const checkpoints::Metadata metadata_;
  std::vector<Shard> shards_;
  std::vector<Place> places_;  // by tensor
  std::uint64_t bytes_ = 0;
  bool committed_ = false;
};

}  // namespace smp::hf
