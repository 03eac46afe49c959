// samples/llama/options.h: the command line of the trainer.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "presets.h"
#include "text.h"

namespace llama {

struct Options {
  Recipe recipe;
  Layout layout;
  TextOptions text;
  std::string name;          ///< of the size, or the file of the model
  std::string config;        ///< the file that the model was read from
  std::optional<int> dp;     ///< what the user believes; else what the ranks make
  std::optional<int> ranks;  ///< likewise
  std::string recompute = "attention";
  std::int64_t steps = 0;
  std::int64_t check = 3;           ///< steps that are compared with one process
  std::int64_t evaluate_every = 0;  ///< steps; 0: at the end only
  std::int64_t generate = 120;      ///< tokens that are written at the end
  std::string prompt = "hacker: n. ";
  std::filesystem::path checkpoint;  ///< where the job saves and goes on from; empty: it does not
  std::int64_t save_every = 0;       ///< steps; 0: at the end only
};

/// Reads the command line; flags of the library (`--smp.KEY VALUE`) are left to smp::init.
/// Returns nothing if help was asked for and has been printed on the first rank.
/// @throws std::invalid_argument  naming what is wrong with the command line.
/// @throws smp::Error             naming what is wrong with the file of the model.
std::optional<Options> parse_options(int argc, char** argv);

}  // namespace llama
