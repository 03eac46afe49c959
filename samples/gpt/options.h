// samples/gpt/options.h: the command line of the trainer.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "text.h"
#include "training.h"

namespace gpt {

struct Options {
  Recipe recipe;
  std::string size = "demo";
  std::string dtype = "float32";
  int pp = 1;
  int tp = 1;
  bool split_vocabulary = false;
  std::optional<int> dp;  ///< what the user believes; else what the ranks make
  std::int64_t steps = 200;
  std::int64_t check = 3;       ///< steps that are compared with one process
  std::int64_t generate = 200;  ///< bytes that are written at the end
  std::string prompt = "The ";
  std::filesystem::path data = default_text();
  std::filesystem::path weights;     ///< to start from; empty: drawn
  std::filesystem::path checkpoint;  ///< where the job saves and goes on from; empty: it does not
  std::int64_t save_every = 0;       ///< steps; 0: at the end only
};

/// Reads the command line; flags of the library (`--smp.KEY VALUE`) are left to smp::init.
/// Returns nothing if help was asked for and has been printed on the first rank.
/// @throws std::invalid_argument  naming what is wrong with the command line.
std::optional<Options> parse_options(int argc, char** argv);

}  // namespace gpt
