// samples/ncf/options.cpp: flags of the trainer, by CLI11.
#include "options.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

namespace ncf {
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

std::optional<Options> parse_options(int argc, char** argv) {
  Options options;
  CLI::App app("Trains neural collaborative filtering, its tables spread over ranks", "ncf");
  app.option_defaults()->always_capture_default();
  app.allow_extras();
  app.footer("Settings of the library are flags too: --smp.KEY VALUE.");
  app.add_option("--size", options.size, "Widths, and sizes of generated ratings")
      ->check(CLI::IsMember({"demo", "paper"}));
  app.add_option("--ratings", options.ratings, "A file as MovieLens has them; else generated");
  app.add_option("--per-user", options.per_user, "Items of each user, of generated ratings")
      ->check(CLI::Range(2, 64));
  app.add_option("--tp", options.tensor_parallel, "Ranks over which the four tables are spread")
      ->check(CLI::PositiveNumber);
  app.add_option("--rows", options.rows, "Pairs in the batch of one rank")
      ->check(CLI::PositiveNumber);
  app.add_option("--microbatches", options.microbatches, "Slices of a batch that travel alone")
      ->check(CLI::PositiveNumber);
  app.add_option("--epochs", options.epochs, "Passes over the ratings")->check(CLI::PositiveNumber);
  app.add_option("--steps", options.steps, "Steps of each epoch at most; 0: all")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--check", options.check, "Steps whose losses must equal those of one process")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--lr", options.learning_rate, "Learning rate of Adam")
      ->check(CLI::PositiveNumber);
  app.add_option("--seed", options.seed, "Of weights, generated ratings and their order");
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    if (is_first_rank()) std::fputs(app.help().c_str(), stdout);
    return std::nullopt;
  } catch (const CLI::ParseError& error) {
    throw std::invalid_argument(error.what());
  }
  refuse_unknown_words(app.remaining());
  options.config = NcfConfig::preset(options.size);
  return options;
}

bool is_first_rank() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"}) {
    if (const char* rank = std::getenv(name)) return std::string(rank) == "0";
  }
  return true;
}

}  // namespace ncf
