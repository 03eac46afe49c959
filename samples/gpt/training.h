// samples/gpt/training.h: how the GPT is trained, on ranks and in one process.
#pragma once

#include <smp/smp.h>
#include <torch/torch.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "gpt.h"
#include "plain_gpt.h"
#include "text.h"

namespace gpt {

struct Recipe {
  GptConfig model;
  std::int64_t rows = 32;  ///< of a step, over all replicas and microbatches
  int microbatches = 4;
  double learning_rate = 3e-3;
  std::uint64_t seed = 1;
  torch::ScalarType dtype = torch::kFloat;
};

/// Largest 2-norm of all gradients together.
inline constexpr double kMaxGradientNorm = 1.0;

/// Losses of the first `steps` steps in plain LibTorch on this rank alone, on whole batches, and
/// the network that comes out, on `device`.
struct Reference {
  std::vector<double> losses;
  PlainGpt net;
};
Reference train_in_one_process(const Recipe& recipe, const Text& text, std::int64_t steps,
                               torch::Device device = torch::kCPU);

/// The same on all ranks of the job together: each reads the rows of its data-parallel rank. All
/// ranks make one and call the same.
class Trainer {
 public:
  /// @param text  outlives it; read where smp::pp_rank() is 0
  /// @throws std::invalid_argument  the rows of a step cannot be dealt to ranks and microbatches.
  Trainer(const Recipe& recipe, const Text& text);

  /// One more step. @return  the loss of the whole batch
  double step();

  /// How many steps the model has been trained for, in this job and before it.
  std::int64_t steps() const { return steps_; }

  /// Writes all that a later job needs to go on, on any number of ranks, to FOLDER/step-N.
  void save(const std::filesystem::path& folder);
  /// Goes on from what was last saved there. @return  whether there is anything
  bool resume(const std::filesystem::path& folder);

  /// The bytes that follow `prompt`, drawn one after the other; of the first replica, on all ranks.
  /// @param prompt  not empty; of what is longer than the model sees, the end counts
  std::string generate(const std::string& prompt, std::int64_t bytes, double temperature = 0.7);

  smp::DistributedModel<Gpt>& model() { return model_; }

 private:
  static Gpt seeded(const Recipe& recipe);

  const Recipe recipe_;
  const Text& text_;
  Gpt net_;
  smp::DistributedModel<Gpt> model_;
  smp::DistributedOptimizer<torch::optim::AdamW> optimizer_;
  std::int64_t steps_ = 0;
};

}  // namespace gpt
