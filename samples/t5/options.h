// samples/t5/options.h: the command line of the trainer.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "config.h"
#include "corpus.h"

namespace t5 {

struct Options {
  std::string config_name = "demo";
  T5Config config;
  SpanCorruption corruption;
  std::filesystem::path data = default_text_path();
  int64_t steps = 150;
  int64_t rows = 16;  ///< of one step, over all microbatches
  int microbatches = 8;
  std::string schedule = "interleaved";
  uint64_t seed = 1;
  std::optional<int> ranks;  ///< what the user believes the number of ranks to be

  /// Tokens that one step reads and writes.
  int64_t tokens_per_step() const {
    return rows * (corruption.input_length() + corruption.target_length());
  }
};

/// Reads the command line; flags of the library (`--smp.KEY VALUE`) are left to smp::init.
/// Returns nothing if help was asked for and has been printed on the first rank.
/// @throws std::invalid_argument  naming what is wrong with the command line.
std::optional<Options> parse_options(int argc, char** argv);

}  // namespace t5
