// T5-11B (Raffel et al., 2020) as data: the modules of samples/t5, their sizes, and one microbatch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "partition/search/tree_builder.h"
#include "simulate/trace.h"

namespace smp::partitioning {

/// How the time of an operator is priced.
enum class OperatorPrice : std::uint8_t {
  kIssued,      ///< every operator takes the same: what it takes to issue it
  kArithmetic,  ///< its multiplications and additions
};

struct T5Microbatch {
  std::int64_t source = 256;  ///< tokens that the encoder reads
  std::int64_t target = 96;   ///< tokens that the decoder writes
  OperatorPrice price = OperatorPrice::kIssued;
};

/// Weights and activations in 16 bits, dropout masks in 8. Activations are what autograd keeps: the
/// inputs of products, the outputs of softmax, ReLU and dropout, the masks.
class T5Of11B {
 public:
  static constexpr std::int64_t kModel = 1024, kHeads = 128, kInner = kHeads * 128,
                                kFeedForward = 65536, kVocabulary = 32128, kBlocks = 24,
                                kBuckets = 32;

  explicit T5Of11B(const T5Microbatch& microbatch) : batch_(microbatch) {
    const int shared = build_.module("shared");
    const int table = build_.weight(shared, "weight", 2 * kVocabulary * kModel);
    call(shared, {.operators = 1});
    stack("encoder", batch_.source, false);
    call(shared, {.operators = 1});
    stack("decoder", batch_.target, true);
    const int head = build_.module("lm_head");
    build_.tie(head, table);
    call(head, {2, 2.0 * batch_.target * kModel * kVocabulary, 2 * batch_.target * kModel});
  }

  const ModuleTree& tree() const { return build_.tree; }
  const simulate::Trace& trace() const { return trace_; }

 private:
  struct Work {
    int operators = 0;
    double flops = 0;
    std::int64_t kept = 0;  // bytes
  };

  // Calls need not nest here: the cost tree looks only at what each module has of its own.
  void call(int module, const Work& work) {
    simulate::TracedCall call{module, -1};
    call.after.seconds =
        batch_.price == OperatorPrice::kIssued ? 20e-6 * work.operators : work.flops / 100e12;
    call.after.activation_bytes = work.kept;
    trace_.calls.push_back(call);
  }

  void linear(const std::string& path, std::int64_t tokens, std::int64_t in, std::int64_t out) {
    call(build_.module(path, 2 * in * out), {1, 2.0 * tokens * in * out, 0});
  }

  // pow, mean, add, rsqrt, and two products.
  void norm(const std::string& path, std::int64_t tokens) {
    call(build_.module(path, 2 * kModel), {6, 6.0 * tokens * kModel, 3 * 2 * tokens * kModel});
  }

  void dropout(const std::string& path, std::int64_t elements, bool kept) {
    call(build_.module(path), {1, 1.0 * elements, (kept ? 3 : 1) * elements});
  }

  void attention(const std::string& path, std::int64_t queries, std::int64_t keys, bool biased) {
    const int module = build_.module(path);
    for (const std::string name : {"q", "k", "v"}) {
      linear(path + "." + name, name == "q" ? queries : keys, kModel, kInner);
    }
    if (biased) {
      const int bias = build_.module(path + ".relative_attention_bias", 2 * kBuckets * kHeads);
      call(bias, {1, 0, 2 * kHeads * queries * keys});
    }
    const std::int64_t scores = kHeads * queries * keys;
    // Two products, the bias added, softmax, and a copy that brings the heads together.
    call(module,
         {5, 4.0 * queries * keys * kInner, 2 * (2 * queries + 2 * keys) * kInner + 2 * scores});
    dropout(path + ".dropout", scores, true);
    linear(path + ".o", queries, kInner, kModel);
  }

  // A layer normalises, does its work, drops out and adds: the addition is its own operator.
  void around(const std::string& layer, std::int64_t tokens) {
    call(build_.tree.find(layer), {1, 1.0 * tokens * kModel, 0});
    norm(layer + ".layer_norm", tokens);
    dropout(layer + ".dropout", tokens * kModel, false);
  }

  void attention_layer(const std::string& path, const std::string& name, std::int64_t queries,
                       std::int64_t keys, bool biased) {
    build_.module(path);
    around(path, queries);
    attention(path + "." + name, queries, keys, biased);
  }

  void feed_forward_layer(const std::string& path, std::int64_t tokens) {
    build_.module(path);
    around(path, tokens);
    const std::string dense = path + ".DenseReluDense";
    const int module = build_.module(dense);
    linear(dense + ".wi", tokens, kModel, kFeedForward);
    call(module, {1, 1.0 * tokens * kFeedForward, 2 * tokens * kFeedForward});  // ReLU
    dropout(dense + ".dropout", tokens * kFeedForward, true);
    linear(dense + ".wo", tokens, kFeedForward, kModel);
  }

  void stack(const std::string& name, std::int64_t tokens, bool decoder) {
    build_.module(name);
    dropout(name + ".dropout", 2 * tokens * kModel, false);
    build_.bound(name + ".block");
    for (int i = 0; i < kBlocks; ++i) {
      const std::string block = name + ".block." + std::to_string(i);
      build_.module(block);
      build_.bound(block + ".layer");
      const std::string layer = block + ".layer.";
      attention_layer(layer + "0", "SelfAttention", tokens, tokens, i == 0);
      if (decoder) attention_layer(layer + "1", "EncDecAttention", tokens, batch_.source, false);
      feed_forward_layer(layer + (decoder ? "2" : "1"), tokens);
    }
    norm(name + ".final_layer_norm", tokens);
  }

  const T5Microbatch batch_;
  TreeBuilder build_;
  simulate::Trace trace_;
};

}  // namespace smp::partitioning
