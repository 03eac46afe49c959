// samples/ncf/options.h: the command line of the trainer.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "ncf.h"

namespace ncf {

struct Options {
  std::string size = "demo";
  NcfConfig config;
  std::string ratings;      ///< a file; empty: generated
  int per_user = 8;         ///< items of each user, of generated ratings
  int tensor_parallel = 1;  ///< ranks over which the tables are spread
  std::int64_t rows = 256;  ///< of the batch of one rank
  int microbatches = 1;
  int epochs = 1;
  std::int64_t steps = 0;  ///< of each epoch at most; 0: all
  std::int64_t check = 0;  ///< steps that are compared with one process
  double learning_rate = 1e-3;
  std::uint64_t seed = 1;
};

/// Reads the command line; flags of the library (`--smp.KEY VALUE`) are left to smp::init.
/// Returns nothing if help was asked for and has been printed on the first rank.
/// @throws std::invalid_argument  naming what is wrong with the command line.
std::optional<Options> parse_options(int argc, char** argv);

}  // namespace ncf
