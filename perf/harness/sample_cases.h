// perf/harness/sample_cases.h: the models of the samples, large enough to be worth measuring: how
// to make one, a batch for it, and its loss.
#pragma once

#include <ATen/ATen.h>

#include <vector>

#include "models/gpt.h"
#include "models/recommender.h"
#include "models/unet.h"
#include "t5/t5.h"

namespace smp::perf {

using at::Tensor;

struct T5Case {
  /// Types of modules whose activations may be computed again.
  static constexpr const char* kBlocks = "T5Block";
  static t5::T5Config config() {
    auto config = t5::T5Config::preset("demo");
    config.d_model = 256;
    config.d_ff = 1024;
    config.vocab_size = 2048;
    config.dropout_rate = 0.1;
    return config;
  }
  static t5::T5 make() { return t5::T5(config()); }
  static std::vector<Tensor> draw() {
    const auto words = config().vocab_size;
    return {at::randint(3, words, {64, 64}, at::kLong), at::randint(3, words, {64, 48}, at::kLong)};
  }
  template <class Net>
  static Tensor loss(Net& net, const std::vector<Tensor>& batch) {
    const auto scores = net(batch[0], batch[1]);
    return at::cross_entropy_loss(scores.flatten(0, 1), batch[1].flatten());
  }
};

struct GptCase {
  static constexpr const char* kBlocks = "Block";
  static models::GptConfig config() {
    return {.vocabulary = 1024, .length = 128, .width = 256, .heads = 8, .layers = 8};
  }
  static models::Gpt make() { return models::Gpt(config()); }
  static std::vector<Tensor> draw() { return {models::draw_sequences(64, config())}; }
  template <class Net>
  static Tensor loss(Net& net, const std::vector<Tensor>& batch) {
    return net(batch[0]);
  }
};

struct UNetCase {
  static constexpr const char* kBlocks = "DoubleConv";
  static models::UNet make() { return models::UNet(32); }
  static std::vector<Tensor> draw() {
    auto [images, masks] = models::draw_rectangles(128);
    return {images, masks};
  }
  template <class Net>
  static Tensor loss(Net& net, const std::vector<Tensor>& batch) {
    return at::binary_cross_entropy_with_logits(net(batch[0]), batch[1]);
  }
};

struct RecommenderCase {
  static constexpr const char* kBlocks = "Tower, Mlp";
  static models::Recommender make() { return {}; }
  static std::vector<Tensor> draw() {
    const auto visits = models::draw_visits(1 << 15);
    return {visits.user, visits.item, visits.clicked, visits.bought};
  }
  template <class Net>
  static Tensor loss(Net& net, const std::vector<Tensor>& batch) {
    const auto [click, purchase] = net(batch[0], batch[1]);
    return at::binary_cross_entropy_with_logits(click, batch[2]) +
           at::binary_cross_entropy_with_logits(purchase, batch[3]);
  }
};

}  // namespace smp::perf
