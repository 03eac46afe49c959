// hf/config_defaults.h: what a model has of which its config.json says nothing.
#pragma once

#include <string_view>

#include "smp/hf.h"

namespace smp::hf {

/// Returns the sizes that transformers gives a model of `model_type`, one that config.cpp knows,
/// with an empty config.json.
Config::Sizes default_sizes(std::string_view model_type);

}  // namespace smp::hf
