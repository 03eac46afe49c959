// Models as plain data, with honest sizes: what the partitioner is measured and tested on. Nothing
// of them ever runs; seconds follow from operations and bytes at fixed rates.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "partition/model/module_tree.h"
#include "simulate/trace.h"

namespace smp::partitioning {

/// A model and one microbatch through it.
struct SyntheticModel {
  ModuleTree tree;
  simulate::Trace trace;
};

struct GptSize {
  int layers = 12;
  int width = 768;
  int vocabulary = 50'000;
  int rows = 1;      ///< of a microbatch
  int length = 512;  ///< tokens of a row
};

/// Blocks are children of the model; the head has weights of its own.
SyntheticModel flat_gpt(const GptSize& size);

/// transformer.h.*, with the head tied to the embedding.
SyntheticModel nested_gpt(const GptSize& size);

struct T5Size {
  int encoder_layers = 12;
  int decoder_layers = 12;
  int width = 768;
  int inner = 768;  ///< heads times width of a head
  int feed_forward = 3072;
  int vocabulary = 32'128;
  int rows = 1;
  int source_length = 512;
  int target_length = 256;
};

/// Encoder and decoder with cross attention; one table for both embeddings and the head.
SyntheticModel t5(const T5Size& size);

struct UnetSize {
  int levels = 4;
  int blocks = 2;     ///< of a level, on either side
  int channels = 64;  ///< of the first level; doubled at each
  int image = 128;    ///< side of the square input
  int rows = 1;
};

/// Skips go through the model itself, which joins them to the input of the way up.
SyntheticModel unet(const UnetSize& size);

/// Modules below random parents, with random weights and times over four orders of magnitude; some
/// are called twice, some are tied.
SyntheticModel random_model(int modules, std::uint64_t seed);

/// "flat_gpt", "nested_gpt", "t5", "unet", "random".
std::vector<std::string> family_names();
/// A member of random size. @param family  one of family_names()
SyntheticModel family_member(const std::string& family, std::uint64_t seed);

}  // namespace smp::partitioning
