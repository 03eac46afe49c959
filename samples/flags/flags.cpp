// samples/flags/flags.cpp: command lines, by CLI11.
#include "flags/flags.h"

#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

namespace flags {
namespace {

/// CLI11 hands back what it does not know: the library's flags, or a mistake.
void refuse_unknown_words(const std::vector<std::string>& words) {
  bool value_may_follow = false;
  for (const auto& word : words) {
    const bool is_library_flag = word.rfind("--smp.", 0) == 0;
    if (!is_library_flag && !value_may_follow) {
      throw std::invalid_argument("unknown argument '" + word + "'; --help lists what there is");
    }
    value_may_follow = is_library_flag && word.find('=') == std::string::npos;
  }
}

}  // namespace

bool parse(CLI::App& app, int argc, char** argv) {
  app.allow_extras();
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    if (is_first_rank()) std::fputs(app.help().c_str(), stdout);
    return false;
  } catch (const CLI::ParseError& error) {
    throw std::invalid_argument(error.what());
  }
  refuse_unknown_words(app.remaining());
  return true;
}

bool is_first_rank() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"}) {
    if (const char* rank = std::getenv(name)) return std::string(rank) == "0";
  }
  return true;
}

}  // namespace flags
