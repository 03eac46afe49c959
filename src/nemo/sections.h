// nemo/sections.h: the parts of a translation.
#pragma once

#include "nemo/nemo_keys.h"
#include "nemo/translation.h"

namespace smp::nemo {

/// Ranks on their axes, batches, types of numbers, recomputation.
void translate_job(NemoKeys& keys, Translation& into);
/// Optimizer, learning rate, length of the run, text.
void translate_recipe(NemoKeys& keys, Translation& into);
/// Sizes and kind of the model.
void translate_model(NemoKeys& keys, Translation& into);
/// Sorts what is left into what changes nothing here and what is lost.
void sort_left_over(const NemoKeys& keys, Translation& into);

}  // namespace smp::nemo
