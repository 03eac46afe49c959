// samples/gpt_testing.h: a GPT so small that its training is compared to the bit.
#pragma once

#include "gpt/text.h"
#include "gpt/training.h"

namespace gpt {

inline Recipe small_recipe() {
  Recipe recipe;
  recipe.model = {.length = 6, .width = 8, .heads = 4, .layers = 3};
  recipe.rows = 16;
  recipe.microbatches = 2;
  recipe.learning_rate = 1e-2;
  recipe.dtype = torch::kDouble;
  return recipe;
}

inline Text small_text() {
  return Text(
      "It is a truth universally acknowledged, that a single man in possession of a good "
      "fortune, must be in want of a wife.");
}

/// Biases of keys are 0 but for rounding: they change all scores of a position alike.
inline void expect_same_values(const Tensor& ours, const Tensor& expected,
                               const std::string& name) {
  const double scale = std::max(1e-3, expected.abs().max().item<double>());
  EXPECT_LE((ours - expected).abs().max().item<double>(), 1e-10 * scale) << name;
}

}  // namespace gpt
