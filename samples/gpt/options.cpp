// samples/gpt/options.cpp: flags of the trainer, by CLI11.
#include "options.h"

#include <stdexcept>

#include "flags/flags.h"

namespace gpt {
namespace {

void add_flags(CLI::App& app, Options& options) {
  auto& recipe = options.recipe;
  const auto positive = CLI::Range(std::int64_t{1}, std::int64_t{1} << 40, "above 0");
  app.add_option("--pp", options.pp, "Stages of the pipeline")->check(positive);
  app.add_option("--tp", options.tp, "Ranks over which each layer is spread")->check(positive);
  app.add_option("--dp", options.dp, "Replicas (default: what the ranks make)")->check(positive);
  app.add_option("--size", options.size, "Of the GPT")
      ->check(CLI::IsMember(GptConfig::preset_names()));
  app.add_flag("--split-vocabulary", options.split_vocabulary,
               "Spread embedding and head over the ranks of --tp, too, by bytes");
  app.add_option("--steps", options.steps, "Training steps")->check(positive);
  app.add_option("--rows", recipe.rows, "Windows of text in one step, over all ranks")
      ->check(positive);
  app.add_option("--microbatches", recipe.microbatches, "Slices of a rank's rows that travel alone")
      ->check(positive);
  app.add_option("--lr", recipe.learning_rate, "Learning rate of AdamW")
      ->check(CLI::PositiveNumber);
  app.add_option("--dtype", options.dtype, "Of parameters")
      ->check(CLI::IsMember({"float32", "float64"}));
  app.add_option("--seed", recipe.seed, "Of the first weights and of the text's windows");
  app.add_option("--data", options.data, "Text to train on: a file");
  app.add_option("--weights", options.weights, "Start from these: safetensors with GPT-2's names");
  app.add_option("--checkpoint", options.checkpoint,
                 "Save into this folder, and go on from what is there");
  app.add_option("--save-every", options.save_every, "Steps; 0: at the end only")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--check", options.check, "Steps whose losses must equal those of one process")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--generate", options.generate, "Bytes to write at the end")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--prompt", options.prompt, "What they follow");
}

}  // namespace

std::optional<Options> parse_options(int argc, char** argv) {
  Options options;
  CLI::App app("Trains a byte-level GPT on text, with any mix of parallel degrees", "gpt");
  app.option_defaults()->always_capture_default();
  app.footer("Settings of the library are flags too: --smp.KEY VALUE.");
  add_flags(app, options);
  if (!flags::parse(app, argc, argv)) return std::nullopt;
  if (options.prompt.empty()) throw std::invalid_argument("--prompt is empty; give it a word");
  options.recipe.model = GptConfig::preset(options.size);
  options.recipe.model.split_vocabulary = options.split_vocabulary;
  options.recipe.dtype = options.dtype == "float64" ? torch::kDouble : torch::kFloat;
  return options;
}

}  // namespace gpt
