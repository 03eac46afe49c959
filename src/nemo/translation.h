// nemo/translation.h: a configuration of NeMo or Megatron-LM in the names of this library.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/json.h"

namespace smp::nemo {

/// What a configuration says, by who reads it here.
struct Translation {
  base::Json settings = base::Json::object();  ///< keys of smp::Config
  base::Json model;                          ///< a config.json of transformers; null: none of ours
  base::Json recipe = base::Json::object();  ///< flags of samples/llama, without dashes
  std::optional<std::int64_t> ranks;
  std::vector<std::string> lost;      ///< "key = value: why, and what to do", a line each
  std::vector<std::string> needless;  ///< the same of what changes nothing here
};

/// Translates the YAML in `text`.
/// @param name  leads the messages: a path
/// @throws UsageError  it is no such YAML, a value has another type than its key takes, or sizes do
///                     not go into one another; the message has the keys and values.
Translation from_nemo(const std::string& text, const std::string& name);

/// Returns it for a person: settings, model, command, and what was lost.
/// @param folder  where smp.json and config.json are; "": nowhere, they are printed
std::string text_of(const Translation& translation, const std::string& folder);

/// Writes smp.json, and config.json if there is a model, into `folder`, which is made if need be.
/// @throws ResourceError  a file cannot be written
void write(const Translation& translation, const std::string& folder);

}  // namespace smp::nemo
