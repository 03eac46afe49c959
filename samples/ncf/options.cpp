// samples/ncf/options.cpp: flags of the trainer, by CLI11.
#include "options.h"

#include "flags/flags.h"

namespace ncf {
std::optional<Options> parse_options(int argc, char** argv) {
  Options options;
  CLI::App app("Trains neural collaborative filtering, its tables spread over ranks", "ncf");
  app.option_defaults()->always_capture_default();
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
  if (!flags::parse(app, argc, argv)) return std::nullopt;
  options.config = NcfConfig::preset(options.size);
  return options;
}

}  // namespace ncf
