// samples/flags/flags.h: what the command lines of the samples have in common.
#pragma once

#include <CLI/CLI.hpp>

namespace flags {

/// Reads the command line into what `app` has options for. Flags of the library (`--smp.KEY VALUE`)
/// are left to smp::init.
/// @return false if help was asked for, which the first rank has printed
/// @throws std::invalid_argument  naming what is wrong with the command line
bool parse(CLI::App& app, int argc, char** argv);

/// Whether this process is the one that talks. It works before smp::init too, by what launchers
/// tell the processes they start.
bool is_first_rank();

}  // namespace flags
