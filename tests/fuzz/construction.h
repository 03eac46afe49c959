// fuzz/construction.h: a random constructor as plain data, and whether a model that is built by it
// under smp::delay_param_initialization is the one that is built without.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fuzz/judge.h"

namespace smp::fuzz {

/// One statement of a constructor: a row of the table in fuzz/acts.cpp, what it draws its details
/// from, and the statements inside of it.
struct Act {
  int row = 0;
  std::uint64_t seed = 0;
  std::vector<Act> inner;
};

/// A model of some modules, whose constructors may use what earlier ones made.
struct Construction {
  std::uint64_t seed = 0;
  int ranks = 1;
  std::vector<std::vector<Act>> modules;
  std::vector<std::uint64_t> between;  ///< construction and placement: fuzz/between.h
};

/// Returns a constructor that depends on the seed only.
Construction draw_construction(std::uint64_t seed);

/// Builds it as a plain program does, and on every rank under the scope, does what comes between,
/// and compares all that a program can see of the two. In this process: a crash is the caller's.
Result judge_construction(const Construction& construction);

/// Returns a smaller one with the same verdict, or the same. @param seconds  to spend at most
Construction shrink_construction(const Construction& construction, Verdict verdict, double seconds);

/// Returns the statements, as a person would write them.
std::string pseudo_code(const Construction& construction);

}  // namespace smp::fuzz
