// samples/llama/presets.h: sizes of models, each with the recipe and the layout that suit it.
#pragma once

#include <string>
#include <vector>

#include "training.h"

namespace llama {

/// How ranks are arranged; what is left over are replicas.
struct Layout {
  int pp = 1;
  int tp = 1;
};

struct Preset {
  std::string config;  ///< a config.json
  Recipe recipe;       ///< but for the model
  Layout layout;       ///< if the command line says nothing; pp = 0: a stage for each rank
  std::int64_t steps = 0;
};

/// @throws std::invalid_argument  naming those that there are
Preset preset(const std::string& name);
std::vector<std::string> preset_names();

/// Takes the model that a config.json of Hugging Face's describes into `recipe`.
/// @throws smp::Error  naming what is wrong with the file, or what this model lacks
void read_config(const std::string& path, Recipe& recipe);

}  // namespace llama
