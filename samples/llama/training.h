// samples/llama/training.h: how the Llama is trained, on ranks and in one process.
#pragma once

#include <smp/recipe/global_batch.h>
#include <smp/recipe/lr_schedule.h>
#include <smp/recipe/model_flops.h>
#include <smp/recipe/spike_detector.h>
#include <smp/smp.h>
#include <torch/torch.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "models/llama.h"
#include "text.h"

namespace llama {

using torch::Tensor;

/// Everything that losses depend on, but for the text.
struct Recipe {
  models::LlamaConfig model;
  std::string config_json;     ///< what the model was read from, to be kept beside its weights
  std::int64_t context = 256;  ///< tokens of a row
  std::int64_t rows = 16;      ///< of a step, over all replicas
  std::int64_t micro_rows = 2;
  double learning_rate = 3e-3;  ///< the peak
  smp::LrScheduleOptions schedule;
  double weight_decay = 0.1;
  double max_gradient_norm = 1.0;
  std::uint64_t seed = 1;
  torch::ScalarType dtype = torch::kFloat;
  std::int64_t held_out_batches = 8;  ///< at most, of each replica

  /// How a step's rows are dealt to the batches of this job.
  /// @throws smp::UsageError  they cannot be.
  smp::GlobalBatch batch(int replicas) const {
    return smp::divide_global_batch(rows, micro_rows, replicas);
  }
  smp::DecoderShape shape() const;
};

/// What a step computed, the same on all ranks.
struct StepNumbers {
  double loss = 0;            ///< nats a token, of the whole batch
  double gradient_norm = 0;   ///< before clipping
  double parameter_norm = 0;  ///< after the step
  double learning_rate = 0;
  double usual_norm = 0;  ///< of the gradients in the steps before; NaN before there are enough
  bool spike = false;     ///< the norm is above it
};

/// The first `steps` steps in plain LibTorch on this rank alone.
std::vector<StepNumbers> train_in_one_process(const Recipe& recipe, const Text& text,
                                              std::int64_t steps);

/// Trains on all ranks of the job together. All ranks make one and call the same.
class Trainer {
 public:
  /// @param text  outlives it
  /// @throws smp::UsageError  the rows of a step cannot be dealt; the model knows fewer tokens than
  ///                          the tokenizer makes.
  Trainer(const Recipe& recipe, const Text& text);

  StepNumbers step();

  /// The mean loss of the held-out text in nats a token; nothing if there is none. The training
  /// does not notice: neither its text nor its random numbers.
  std::optional<double> held_out_loss();

  /// What a greedy reader writes after `prompt`: `tokens` tokens, or up to the end of a document.
  std::string continue_text(const std::string& prompt, std::int64_t tokens);

  /// Writes all that a later job needs to go on, on any ranks, to FOLDER/step-N. Model and
  /// config.json in it are what transformers' from_pretrained() reads.
  void save(const std::filesystem::path& folder);
  /// Goes on from what was last saved there. @return  whether there is anything
  bool resume(const std::filesystem::path& folder);

  /// Steps that the model was trained for, in this job and before it, and tokens read in them.
  std::int64_t steps() const { return schedule_.steps(); }
  std::int64_t tokens() const { return tokens_; }

  smp::DistributedModel<models::Llama>& model() { return model_; }
  const smp::SpikeDetector& spikes() const { return spikes_; }

 private:
  ShareOfText share() const;
  smp::StepOptions step_options() const;
  smp::data::Batch next_batch();

  const Recipe recipe_;
  const Text& text_;
  const smp::GlobalBatch batch_;
  models::Llama net_;
  smp::DistributedModel<models::Llama> model_;
  smp::DistributedOptimizer<torch::optim::AdamW> optimizer_;
  smp::LrSchedule schedule_;
  smp::SpikeDetector spikes_;
  std::int64_t tokens_ = 0;
  std::optional<smp::data::TokenLoader> loader_;  // where the model is fed
  std::vector<smp::data::Batch> held_out_;        // there, too
  std::int64_t held_out_batches_;                 // on every rank
};

}  // namespace llama
