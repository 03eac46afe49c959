// hf/outgoing.h: a model's tensors as those of a published model.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/tensor_info.h"
#include "hf/name_map.h"

namespace smp::hf {

/// A tensor of the model, with all its names.
struct OwnTensor {
  std::vector<std::string> names;
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  std::vector<std::int64_t> sizes;
};

/// A tensor to publish, and the tensors of the model that it consists of.
struct Joined {
  checkpoints::TensorInfo info;
  std::vector<std::size_t> parts;  ///< numbers of the model's tensors, along axis 0
  bool turned = false;             ///< after that
};

/// Returns what is published of a model, in the order of the model; buffers are left out.
/// @throws UsageError  parts are missing, do not fit each other, or are there twice; tensors that
///                     transformers has once are two in the model.
std::vector<Joined> joined_tensors(const std::vector<OwnTensor>& own, const NameMap& names);

/// Returns true if `all` have a head's matrix beside the table of tokens.
bool has_head(const std::vector<Joined>& all, Family family);

/// Throws unless `all` are what transformers expects of a model of `config`, which has a head of
/// its own or none, as they do. @throws UsageError  listing everything that is not
void require_published(const std::vector<Joined>& all, const Config& config);

/// Returns the text of config.json for a model of these tensors: that of `config` with their dtype,
/// and with what they say of a head of its own.
std::string config_text(const Config& config, const std::vector<Joined>& all);

}  // namespace smp::hf
