// samples/t5/options.cpp: flags of the trainer, by CLI11.
#include "options.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <vector>

namespace t5 {
namespace {

std::string check_positive(const std::string& text) {
  const bool is_number = text.find_first_not_of("0123456789") == std::string::npos;
  const bool is_zero = text.find_first_not_of('0') == std::string::npos;
  return is_number && !is_zero ? "" : "'" + text + "' is not a whole number above 0";
}

void add_flags(CLI::App& app, Options& options) {
  const CLI::Validator positive(check_positive, "");
  app.add_option("--ranks", options.ranks, "Ranks that ./smp starts (default 4)")->check(positive);
  app.add_option("--steps", options.steps, "Training steps")->check(positive);
  app.add_option("--rows", options.rows, "Windows of text in one step")->check(positive);
  app.add_option("--microbatches", options.microbatches, "Slices of a step that travel alone")
      ->check(positive);
  app.add_option("--schedule", options.schedule,
                 "Which microbatch may run next: interleaved, simple, 1f1b, zero_bubble, file:PATH "
                 "(docs/schedules.md)");
  app.add_option("--data", options.data, "Text to train on: a file, or a folder of files");
  app.add_option("--config,--size", options.config_name, "Size of the T5")
      ->check(CLI::IsMember(T5Config::preset_names()));
  app.add_option("--seed", options.seed, "Of the first weights and of the text's windows");
}

/// CLI11 hands back what it does not know: the library's flags, or a mistake.
void refuse_unknown(const std::vector<std::string>& words) {
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
  CLI::App app("Trains a T5 on text over pipeline ranks: ./smp demo [options]", "smp demo");
  app.option_defaults()->always_capture_default();
  app.allow_extras();
  app.footer(
      "Settings of the library are flags too: --smp.KEY VALUE.\n"
      "With --dp, --tp or --pp a GPT is trained instead: ./smp demo --dp 2 --tp 2 --help");
  add_flags(app, options);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    if (is_first_rank()) std::fputs(app.help().c_str(), stdout);
    return std::nullopt;
  } catch (const CLI::ParseError& error) {
    throw std::invalid_argument(error.what());
  }
  refuse_unknown(app.remaining());
  options.config = T5Config::preset(options.config_name);
  options.config.dropout_rate = 0.0;  // as in T5 1.1's pre-training
  return options;
}

bool is_first_rank() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"}) {
    if (const char* rank = std::getenv(name)) return std::string(rank) == "0";
  }
  return true;
}

}  // namespace t5
