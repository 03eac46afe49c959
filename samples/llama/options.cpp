// samples/llama/options.cpp: flags of the trainer, by CLI11.
#include "options.h"

#include <algorithm>
#include <map>
#include <stdexcept>
#include <utility>
#include <vector>

#include "flags/flags.h"

namespace llama {
namespace {

const std::map<std::string, torch::ScalarType>& dtypes() {
  static const std::map<std::string, torch::ScalarType> table{
      {"float32", torch::kFloat}, {"float64", torch::kDouble}, {"bfloat16", torch::kBFloat16}};
  return table;
}

const std::map<std::string, smp::LrDecay>& decays() {
  static const std::map<std::string, smp::LrDecay> table{{"constant", smp::LrDecay::kConstant},
                                                         {"linear", smp::LrDecay::kLinear},
                                                         {"cosine", smp::LrDecay::kCosine}};
  return table;
}

/// What follows --size, for a first look at the command line.
std::string size_among(int argc, char** argv) {
  CLI::App app;
  std::string size = "demo";
  app.add_option("--size", size);
  app.allow_extras();
  app.set_help_flag();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError&) {  // said at the second look
  }
  return size;
}

/// A value of `table` by its name.
template <class T>
void add_choice(CLI::App& app, const std::string& flag, T& value,
                const std::map<std::string, T>& table, const std::string& what) {
  app.add_option(flag, value, what)->transform(CLI::CheckedTransformer(table).description(""));
}

class Flags {
 public:
  Flags(Options& options, std::string size) : options_(options), size_(std::move(size)) {}

  void add(CLI::App& app) {
    app.add_option("--size", size_, "Of the Llama, with the recipe and the layout that suit it")
        ->check(CLI::IsMember(preset_names()));
    app.add_option("--config", options_.config, "A config.json of Hugging Face's instead");
    add_layout(app);
    add_recipe(app);
    add_text(app);
    add_run(app);
  }

  /// Layout flags that are left out are 1, if there is any.
  void finish() {
    if (!pp_ && !tp_ && !options_.dp) return;
    options_.layout = {.pp = pp_.value_or(1), .tp = tp_.value_or(1)};
  }

 private:
  void add_layout(CLI::App& app) {
    app.add_option("--pp", pp_, "Stages of the pipeline (default: all ranks, or the size's)")
        ->check(positive_);
    app.add_option("--tp", tp_, "Ranks over which each projection is spread")->check(positive_);
    app.add_option("--dp", options_.dp, "Replicas (default: what the ranks make)")
        ->check(positive_);
    app.add_option("--ranks", options_.ranks, "Ranks that ./smp starts (default: one a core)")
        ->check(positive_);
  }

  void add_recipe(CLI::App& app) {
    auto& recipe = options_.recipe;
    auto& schedule = recipe.schedule;
    app.add_option("--context", recipe.context, "Tokens of a row")->check(positive_);
    app.add_option("--rows", recipe.rows, "Rows of a step, over all replicas and microbatches")
        ->check(positive_);
    app.add_option("--micro-rows", recipe.micro_rows, "Rows of a microbatch")->check(positive_);
    app.add_option("--lr", recipe.learning_rate, "The peak of AdamW's learning rate")
        ->check(CLI::PositiveNumber);
    app.add_option("--warmup", schedule.warmup_steps, "Steps up to the peak")->check(not_negative_);
    add_choice(app, "--decay", schedule.decay, decays(), "constant, linear or cosine");
    app.add_option("--decay-steps", schedule.decay_steps,
                   "Steps from the peak to the floor, whatever --steps is")
        ->check(not_negative_);
    app.add_option("--floor", schedule.floor, "Share of the peak that is left at last")
        ->check(CLI::Range(0.0, 1.0));
    app.add_option("--weight-decay", recipe.weight_decay, "Of all parameters")
        ->check(CLI::NonNegativeNumber);
    app.add_option("--clip", recipe.max_gradient_norm, "Largest norm of all gradients together")
        ->check(CLI::PositiveNumber);
    add_choice(app, "--dtype", recipe.dtype, dtypes(),
               "float32, float64, or bfloat16, which is rounded by chance");
    app.add_option("--seed", recipe.seed, "Of the first weights and of the text's order");
    app.add_option("--recompute", options_.recompute,
                   "What is computed again in the backward instead of held")
        ->check(CLI::IsMember({"none", "attention", "layers"}));
  }

  void add_text(CLI::App& app) {
    app.add_option("--data", options_.text.files,
                   "Files to train on: text with a document a line, .jsonl, .tokens, .idx of "
                   "Megatron, or folders of `datasets` "
                   "(default: the text of the sample)");
    app.add_option("--held-out", options_.text.held_out, "Files of which the loss is shown");
    app.add_option("--tokenizer", options_.text.tokenizer,
                   "A SentencePiece model (default: a token is a byte)");
    app.add_option("--evaluate-every", options_.evaluate_every,
                   "Steps between losses of the held-out text; 0: at the end only")
        ->check(not_negative_);
    app.add_option("--generate", options_.generate, "Tokens to write at the end")
        ->check(not_negative_);
    app.add_option("--prompt", options_.prompt, "What they follow");
  }

  void add_run(CLI::App& app) {
    app.add_option("--steps", options_.steps, "Training steps, those before this job included")
        ->check(positive_);
    app.add_option("--check", options_.check,
                   "Steps whose losses must equal those of one process (not in bfloat16)")
        ->check(not_negative_);
    app.add_option("--checkpoint", options_.checkpoint,
                   "Save into this folder, and go on from what is there");
    app.add_option("--save-every", options_.save_every, "Steps; 0: at the end only")
        ->check(not_negative_);
  }

  const CLI::Range positive_{std::int64_t{1}, std::int64_t{1} << 40, "above 0"};
  const CLI::Range not_negative_{std::int64_t{0}, std::int64_t{1} << 40, "0 or more"};
  Options& options_;
  std::string size_;  // was looked for before
  std::optional<int> pp_, tp_;
};

Options defaults(const Preset& preset) {
  Options options;
  options.recipe = preset.recipe;
  options.layout = preset.layout;
  options.config = preset.config;
  options.steps = preset.steps;
  options.evaluate_every = std::max<std::int64_t>(1, preset.steps / 8);
  return options;
}

/// The sample's text has a held-out part of its own; another one has what the user says.
void use_default_text(TextOptions& text) {
  if (!text.files.empty()) return;
  text.files = {sample_folder() + "/text/train.txt"};
  if (text.held_out.empty()) text.held_out = {sample_folder() + "/text/held_out.txt"};
}

}  // namespace

std::optional<Options> parse_options(int argc, char** argv) {
  CLI::App app("Trains a Llama on text, with any mix of parallel degrees", "llama");
  app.option_defaults()->always_capture_default();
  app.footer("Settings of the library are flags too: --smp.KEY VALUE.");
  const auto size = size_among(argc, argv);
  auto options = defaults(preset(size));
  const auto config_of_size = options.config;
  Flags flags(options, size);
  flags.add(app);
  if (!flags::parse(app, argc, argv)) return std::nullopt;
  flags.finish();
  if (options.prompt.empty()) throw std::invalid_argument("--prompt is empty; give it a word");
  options.name = options.config == config_of_size ? size : options.config;
  use_default_text(options.text);
  read_config(options.config, options.recipe);
  return options;
}

}  // namespace llama
