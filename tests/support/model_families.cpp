// support/model_families.cpp: U-Net, random trees, and members of random size.
#include "support/model_families.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "base/check.h"
#include "support/model_writer.h"

namespace smp::partitioning {
namespace {

using Count = std::int64_t;
using Random = std::mt19937_64;

/// From `low` to `high`, both included; the same on every machine.
int between(Random& random, int low, int high) {
  return low + static_cast<int>(random() % static_cast<unsigned>(high - low + 1));
}

int one_of(Random& random, std::initializer_list<int> values) {
  return *(values.begin() + between(random, 0, static_cast<int>(values.size()) - 1));
}

// ---- U-Net -------------------------------------------------------------------------------------

/// Two convolutions with a norm each.
struct ConvBlock {
  int module = 0;
  Count inputs = 0;
  std::vector<Layer> layers;
};

Layer convolution(ModelWriter& write, int parent, const std::string& name, Count pixels, Count in,
                  Count out) {
  const int module = write.module(parent, name, 9 * in * out + out);
  return {module, 18.0 * static_cast<double>(pixels * in * out), pixels * in, pixels * out,
          pixels * in};
}

ConvBlock conv_block(ModelWriter& write, int parent, const std::string& name, Count pixels,
                     Count in, Count out) {
  ConvBlock made{write.module(parent, name), pixels * in, {}};
  made.layers = {convolution(write, made.module, "conv_1", pixels, in, out),
                 norm(write, made.module, "norm_1", pixels, out),
                 convolution(write, made.module, "conv_2", pixels, out, out),
                 norm(write, made.module, "norm_2", pixels, out)};
  return made;
}

void call(ModelWriter& write, const ConvBlock& block) {
  write.begin(block.module, block.inputs * kFloatBytes);
  for (const Layer& layer : block.layers) write.call(layer);
  write.end(block.layers.back().outputs * kFloatBytes);
}

/// One resolution on one side.
struct Level {
  int module = 0;
  Count inputs = 0, outputs = 0;
  std::vector<ConvBlock> blocks;
};

/// @param in  channels that arrive; on the way up these are those of the skip too.
Level level(ModelWriter& write, const std::string& name, const UnetSize& size, Count pixels,
            Count in, Count out) {
  Level made;
  made.module = write.module(0, name);
  made.inputs = pixels * in;
  made.outputs = pixels * out;
  for (int i = 0; i < size.blocks; ++i) {
    made.blocks.push_back(conv_block(write, made.module, "block_" + std::to_string(i), pixels,
                                     i == 0 ? in : out, out));
  }
  return made;
}

void call(ModelWriter& write, const Level& level) {
  write.begin(level.module, level.inputs * kFloatBytes);
  for (const ConvBlock& block : level.blocks) call(write, block);
  write.end(level.outputs * kFloatBytes);
}

// ---- random models -----------------------------------------------------------------------------

/// 10^u for a uniform u between `low` and `high`.
double magnitude(Random& random, double low, double high) {
  return std::pow(10, low + (high - low) * static_cast<double>(random() >> 11) * 0x1p-53);
}

class RandomModel {
 public:
  explicit RandomModel(std::uint64_t seed) : random_(seed) {}

  SyntheticModel make(int modules) {
    children_.resize(1);
    for (int i = 1; i < modules; ++i) declare(i);
    run(0);
    return std::move(write_).take();
  }

 private:
  void declare(int index) {
    // Recent modules are likelier parents, so that trees are deep as well as wide.
    const int parent = between(random_, std::max(0, index - 8 - index / 4), index - 1);
    const bool tied = !weighty_.empty() && between(random_, 0, 39) == 0;
    const bool empty = between(random_, 0, 4) == 0;
    const auto elements = static_cast<Count>(magnitude(random_, 3, 6.5));
    const int module =
        write_.module(parent, "m" + std::to_string(index), tied || empty ? 0 : elements);
    if (tied)
      write_.tie(module, weighty_[between(random_, 0, static_cast<int>(weighty_.size()) - 1)]);
    if (!tied && !empty) weighty_.push_back(module);
    children_[parent].push_back(module);
    children_.emplace_back();
  }

  void run(int module) {
    const auto bytes = static_cast<Count>(magnitude(random_, 3, 6));
    write_.begin(module, bytes);
    write_.compute(magnitude(random_, 6, 9), 0);
    for (const int child : children_[module]) {
      run(child);
      write_.compute(0, 2 * bytes);
      if (children_[child].empty() && between(random_, 0, 19) == 0) run(child);
    }
    write_.end(bytes, bytes * between(random_, 1, 4));
  }

  Random random_;
  ModelWriter write_;
  std::vector<std::vector<int>> children_;
  std::vector<int> weighty_;  // modules with a weight
};

// Sizes of models that are worth cutting: hundreds of millions of weights and more.

SyntheticModel some_gpt(Random& random, bool nested) {
  GptSize size;
  size.layers = between(random, 24, 48);
  size.width = one_of(random, {1024, 1536, 2048});
  size.vocabulary = one_of(random, {16'000, 32'000, 50'000});
  size.rows = between(random, 1, 4);
  size.length = one_of(random, {256, 512, 1024});
  return nested ? nested_gpt(size) : flat_gpt(size);
}

SyntheticModel some_t5(Random& random) {
  T5Size size;
  size.encoder_layers = between(random, 6, 24);
  size.decoder_layers = between(random, 6, 24);
  size.width = one_of(random, {768, 1024});
  size.inner = size.width * one_of(random, {1, 4});
  size.feed_forward = size.width * one_of(random, {4, 16});
  size.rows = between(random, 1, 4);
  size.source_length = one_of(random, {256, 512});
  size.target_length = one_of(random, {64, 128, 256});
  return t5(size);
}

SyntheticModel some_unet(Random& random) {
  UnetSize size;
  size.levels = between(random, 3, 5);
  size.blocks = between(random, 1, 4);
  size.channels = one_of(random, {32, 64, 96});
  size.image = one_of(random, {64, 128});
  size.rows = between(random, 1, 4);
  return unet(size);
}

}  // namespace

SyntheticModel unet(const UnetSize& size) {
  ModelWriter write;
  std::vector<Level> down, up;
  Count channels = size.channels, pixels = Count{size.rows} * size.image * size.image;
  const Layer stem = convolution(write, 0, "stem", pixels, 3, channels);
  for (int i = 0; i < size.levels; ++i, channels *= 2, pixels /= 4) {
    down.push_back(level(write, "down_" + std::to_string(i), size, pixels,
                         i == 0 ? channels : channels / 2, channels));
  }
  const Level middle = level(write, "middle", size, pixels, channels / 2, channels);
  for (int i = size.levels; i-- > 0;) {
    channels /= 2, pixels *= 4;
    up.push_back(level(write, "up_" + std::to_string(i), size, pixels, 3 * channels, channels));
  }
  const Layer last = convolution(write, 0, "last", pixels, channels, 3);
  write.begin(0, stem.inputs * kFloatBytes);
  write.call(stem);
  for (const Level& each : down) {
    call(write, each);
    write.compute(0, 2 * each.outputs * kFloatBytes);  // pooling
  }
  call(write, middle);
  for (const Level& each : up) {
    write.compute(0, 2 * each.inputs * kFloatBytes);  // joins with the skip
    call(write, each);
  }
  write.call(last);
  write.end(last.outputs * kFloatBytes);
  return std::move(write).take();
}

SyntheticModel random_model(int modules, std::uint64_t seed) {
  return RandomModel(seed).make(modules);
}

std::vector<std::string> family_names() {
  return {"flat_gpt", "nested_gpt", "t5", "unet", "random"};
}

SyntheticModel family_member(const std::string& family, std::uint64_t seed) {
  Random random(seed);
  if (family == "flat_gpt") return some_gpt(random, false);
  if (family == "nested_gpt") return some_gpt(random, true);
  if (family == "t5") return some_t5(random);
  if (family == "unet") return some_unet(random);
  SMP_REQUIRE(family == "random", "there is no family \"", family, "\"");
  return random_model(between(random, 100, 400), seed);
}

}  // namespace smp::partitioning
