// samples/t5/options.cpp: flags of the trainer, by CLI11.
#include "options.h"

#include "flags/flags.h"

namespace t5 {
namespace {

std::string check_positive(const std::string& text) {
  const bool is_number = text.find_first_not_of("0123456789") == std::string::npos;
  const bool is_zero = text.find_first_not_of('0') == std::string::npos;
  return is_number && !is_zero ? "" : "'" + text + "' is not a whole number above 0";
}

void add_flags(CLI::App& app, Options& options) {
  const CLI::Validator positive(check_positive, "");
  app.add_option("--ranks", options.ranks, "Ranks that ./smp starts (default: one a core, 2 to 8)")
      ->check(positive);
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

}  // namespace

std::optional<Options> parse_options(int argc, char** argv) {
  Options options;
  CLI::App app("Trains a T5 on text over pipeline ranks: ./smp demo [options]", "smp demo");
  app.option_defaults()->always_capture_default();
  app.footer(
      "Settings of the library are flags too: --smp.KEY VALUE.\n"
      "With --dp, --tp or --pp a GPT is trained instead: ./smp demo --dp 2 --tp 2 --help");
  add_flags(app, options);
  if (!flags::parse(app, argc, argv)) return std::nullopt;
  options.config = T5Config::preset(options.config_name);
  options.config.dropout_rate = 0.0;  // as in T5 1.1's pre-training
  return options;
}

}  // namespace t5
