// samples/llama/report.cpp: introduction, a line now and then, outcome.
#include "report.h"

#include <smp/recipe/gemm_ceiling.h>

#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <fstream>
#include <stdexcept>

namespace llama {
namespace {

constexpr std::int64_t kLines = 24;      // of progress in a run
constexpr double kTolerance = 1e-4;      // float32, summed in another order
constexpr const char* kRunFile = "run";  // in the folder of checkpoints, names that of the log

[[gnu::format(printf, 1, 2)]] std::string format(const char* pattern, ...) {
  char text[512];
  std::va_list values;
  va_start(values, pattern);
  std::vsnprintf(text, sizeof text, pattern, values);
  va_end(values);
  return text;
}

smp::RunLogOptions log_options(const Options& options, const Trainer& trainer) {
  smp::RunLogOptions log{.loss_unit = "nats per token", .lines_before = trainer.steps()};
  if (trainer.steps() > 0) log.continues = log_before(options.checkpoint);
  return log;
}

int machines() { return (smp::size() + smp::local_size() - 1) / smp::local_size(); }

/// All ranks measure at once, as they compute at once.
double peak_flops(const Options& options) {
  if (smp::is_planning()) return 0;
  smp::barrier();
  const double own =
      smp::measured_gemm_flops({.dtype = options.recipe.dtype, .device = smp::device()});
  double sum = 0;
  for (const double one : smp::all_gather(own)) sum += one;
  return sum;
}

smp::ThroughputOptions throughput_options(const Options& options, double price_per_hour) {
  const auto& recipe = options.recipe;
  return {.sequence_length = recipe.context,
          .sequences_per_step = recipe.rows,
          .flops_per_sequence = smp::training_flops(recipe.shape(), recipe.context),
          .peak_flops = peak_flops(options),
          .instances = machines(),
          .price_per_hour = price_per_hour};
}

void note_log(const std::filesystem::path& checkpoint, const std::string& folder) {
  std::filesystem::create_directories(checkpoint);
  std::ofstream(checkpoint / kRunFile) << std::filesystem::absolute(folder).string() << '\n';
}

/// Parameters: "1.7 M". Norms, a thousandth, are left out.
std::string size_of(const Recipe& recipe) {
  const auto shape = recipe.shape();
  double count = smp::matrix_parameters(shape);
  if (!recipe.model.tie_word_embeddings) {
    count += static_cast<double>(shape.vocab_size * shape.hidden_size);
  }
  if (count >= 1e9) return format("%.1f G", count / 1e9);
  return count >= 1e6 ? format("%.1f M", count / 1e6) : format("%.0f k", count / 1e3);
}

std::string one_line(std::string text) {
  for (char& byte : text) {
    if (byte < ' ' || byte > '~') byte = byte == '\n' ? ' ' : '?';
  }
  return text;
}

}  // namespace

std::string log_before(const std::filesystem::path& checkpoint) {
  std::string folder;
  std::getline(std::ifstream(checkpoint / kRunFile), folder);
  return std::filesystem::exists(folder + "/run.json") ? folder : std::string();
}

Report::Report(const Options& options, Trainer& trainer, std::vector<StepNumbers> alone,
               double price_per_hour)
    : options_(options),
      trainer_(trainer),
      log_("llama", trainer.model(), log_options(options, trainer)),
      meter_(throughput_options(options, price_per_hour)),
      progress_(std::max(options.steps, trainer.steps()), trainer.steps(), smp::rank() == 0),
      alone_(std::move(alone)),
      priced_(price_per_hour > 0) {
  if (smp::rank() != 0) return;
  introduce();
  if (!options.checkpoint.empty()) note_log(options.checkpoint, log_.folder());
}

void Report::say(const char* topic, const std::string& text) {
  if (smp::rank() != 0) return;
  progress_.erase();
  std::printf("%-8s%s\n", topic, text.c_str());
  std::fflush(stdout);
}

void Report::step(const StepNumbers& numbers) {
  const auto timing = log_.measure();  // before another step runs
  const auto step = trainer_.steps();
  const bool is_due = options_.evaluate_every > 0 && step % options_.evaluate_every == 0;
  std::optional<double> held_out;
  if (is_due && step < options_.steps) held_out = trainer_.held_out_loss();
  const auto rates = meter_.step(timing.seconds);
  std::vector<std::pair<std::string, double>> line{
      {"loss", numbers.loss},
      {"gradient_norm", numbers.gradient_norm},
      {"parameter_norm", numbers.parameter_norm},
      {"learning_rate", numbers.learning_rate},
      {"spike", numbers.spike},
      {"tokens", static_cast<double>(trainer_.tokens())},
      {"tokens_per_second", rates.tokens_per_second},
      {"flops_per_second_and_instance", rates.mfpi}};
  if (rates.mfu > 0) line.emplace_back("mfu", rates.mfu);
  if (priced_) line.emplace_back("cost_4m_tokens", rates.cost_per_4m_tokens);
  if (held_out) line.emplace_back("held_out_loss", *held_out);
  log_.append(line);
  compare(numbers);
  show(numbers, held_out, timing, rates);
  progress_.step(timing.seconds, format("loss %.3f", numbers.loss));
}

void Report::compare(const StepNumbers& numbers) {
  if (compared_ == alone_.size()) return;
  const auto& expected = alone_[compared_++];
  for (const auto& [now, then] : {std::pair(numbers.loss, expected.loss),
                                  std::pair(numbers.gradient_norm, expected.gradient_norm),
                                  std::pair(numbers.learning_rate, expected.learning_rate)}) {
    const double difference = std::abs(now - then) / std::max(std::abs(then), 1e-12);
    if (!(difference < kTolerance)) {
      throw std::runtime_error(
          format("step %zu differs from one process: %.8g instead of %.8g", compared_, now, then));
    }
    difference_ = std::max(difference_, difference);
  }
  if (compared_ < alone_.size()) return;
  say("check", format("losses and gradient norms of %zu steps equal those of one process; largest "
                      "difference %.1e",
                      alone_.size(), difference_));
}

void Report::show(const StepNumbers& numbers, std::optional<double> held_out,
                  const smp::StepTiming& timing, const smp::Throughput& rates) {
  const auto step = trainer_.steps();
  const auto stride = std::max<std::int64_t>(1, options_.steps / kLines);
  if (numbers.spike) {
    say("spike", format("step %ld: the gradient's norm is %.2f, the mean of the steps before %.2f",
                        step, numbers.gradient_norm, numbers.usual_norm));
  }
  if (step % stride != 0 && step != options_.steps && !held_out) return;
  auto text =
      format("%ld/%ld   loss %.3f   gradients %.2f   %.0f tokens/s   %.2f s   bubble %.0f %%", step,
             options_.steps, numbers.loss, numbers.gradient_norm, rates.tokens_per_second,
             timing.seconds, 100 * timing.bubble);
  if (rates.mfu > 0) text += format("   MFU %.0f %%", 100 * rates.mfu);
  if (held_out) text += format("   held out %.3f", *held_out);
  say("step", text);
}

void Report::introduce() const {
  const auto& recipe = options_.recipe;
  const auto shape = recipe.shape();
  const auto batch = recipe.batch(smp::data_shard().count);
  const auto line = [](const char* topic, const std::string& text) {
    std::printf("%-8s%s\n", topic, text.c_str());
  };
  line("model", format("Llama \"%s\": %ld layers, width %ld, %ld heads, %ld of keys and values, "
                       "%s parameters, %s",
                       options_.name.c_str(), shape.layers, shape.hidden_size, shape.heads,
                       shape.kv_heads, size_of(recipe).c_str(), torch::toString(recipe.dtype)));
  line("ranks", format("%d = %d stages x %d tensor-parallel x %d replicas", smp::size(),
                       smp::pp_size(), smp::tp_size(), smp::rdp_size()));
  line("batch",
       format("%ld rows = %ld rows x %ld microbatches x %ld replicas, of %ld tokens", batch.total(),
              batch.rows, batch.accumulation, batch.replicas, recipe.context));
  std::fflush(stdout);
}

void Report::finish(std::optional<double> held_out, const std::string& written) {
  const auto pictures = log_.finish();
  const auto rates = meter_.mean();
  const auto& spikes = trainer_.spikes();
  auto text = format("%ld steps, %ld tokens", trainer_.steps(), trainer_.tokens());
  if (rates.tokens_per_second > 0) {
    text += format("; %.0f tokens/s, %.3g FLOP/s a machine", rates.tokens_per_second, rates.mfpi);
  }
  if (rates.mfu > 0) text += format(", %.0f %% of what matrix products reach", 100 * rates.mfu);
  if (priced_) text += format("; 4 M tokens cost %.4g", rates.cost_per_4m_tokens);
  say("done", text);
  say("spikes", format("%ld of the gradient's norm%s", spikes.spikes(),
                       spikes.ended().empty() ? ""
                                              : format(", %.0f %% over after one step",
                                                       100 * spikes.recovered_in_one_step())
                                                    .c_str()));
  if (held_out) say("unseen", format("loss of the held-out text: %.3f nats a token", *held_out));
  if (!written.empty()) say("writes", one_line(written));
  say("wrote", log_.folder() + "/metrics.jsonl");
  for (const auto& picture : pictures) say("", picture);
}

}  // namespace llama
