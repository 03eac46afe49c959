// support/transformer_families.cpp: GPT and T5.
#include <algorithm>

#include "support/model_families.h"
#include "support/model_writer.h"

namespace smp::partitioning {
namespace {

using Count = std::int64_t;

Layer embedding(ModelWriter& write, int parent, const std::string& name, Count tokens,
                Count vocabulary, Count width) {
  return {write.module(parent, name, vocabulary * width), 0, tokens, tokens * width, tokens};
}

/// A head that reads the table of the embedding.
Layer tied_head(ModelWriter& write, const Layer& table, Count tokens, Count width, Count out) {
  const int module = write.module(0, "lm_head");
  write.tie(module, table.module);
  return {module, 2.0 * static_cast<double>(tokens * width * out), tokens * width, tokens * out,
          tokens * width};
}

/// What of a microbatch an attention looks at.
struct Attended {
  Count rows, queries, keys, width, inner;
};

struct Attention {
  int module = 0;
  Attended size{};
  std::vector<Layer> projections;
  Layer output;

  Count tokens() const { return size.rows * size.queries; }
  Count scores() const { return size.rows * size.queries * size.keys; }
};

Attention attention(ModelWriter& write, int parent, const std::string& name, const Attended& size,
                    bool fused) {
  Attention made{write.module(parent, name), size, {}, {}};
  const Count queries = size.rows * size.queries, keys = size.rows * size.keys;
  if (fused) {
    made.projections = {linear(write, made.module, "qkv", queries, size.width, 3 * size.inner)};
  } else {
    made.projections = {linear(write, made.module, "q", queries, size.width, size.inner),
                        linear(write, made.module, "k", keys, size.width, size.inner),
                        linear(write, made.module, "v", keys, size.width, size.inner)};
  }
  made.output = linear(write, made.module, "o", queries, size.inner, size.width);
  return made;
}

void call(ModelWriter& write, const Attention& attention) {
  const Attended& size = attention.size;
  const bool crosses = size.keys != size.queries;
  const Count in =
      attention.tokens() * size.width + (crosses ? size.rows * size.keys * size.width : 0);
  const Count heads = std::max<Count>(1, size.inner / 64);
  write.begin(attention.module, in * kFloatBytes);
  for (const Layer& projection : attention.projections) write.call(projection);
  write.compute(4.0 * static_cast<double>(attention.scores() * size.inner),
                4 * attention.scores() * heads * kFloatBytes);
  write.call(attention.output);
  write.end(attention.tokens() * size.width * kFloatBytes,
            (2 * attention.scores() * heads + 3 * attention.tokens() * size.inner) * kFloatBytes);
}

struct FeedForward {
  int module = 0;
  std::vector<Layer> layers;
};

FeedForward feed_forward(ModelWriter& write, int parent, Count tokens, Count width, Count inner) {
  FeedForward made{write.module(parent, "mlp"), {}};
  made.layers = {linear(write, made.module, "up", tokens, width, inner),
                 pointwise(write, made.module, "activation", tokens * inner),
                 linear(write, made.module, "down", tokens, inner, width)};
  return made;
}

/// norm, attention, maybe norm and cross attention, norm, feed-forward; additions in between.
struct Block {
  int module = 0;
  std::vector<Layer> norms;
  std::vector<Attention> attentions;
  FeedForward mlp;
  Layer dropout;
};

/// @param attended  self attention, then maybe cross attention
Block block(ModelWriter& write, int parent, const std::string& name,
            const std::vector<Attended>& attended, Count inner, bool fused) {
  const Attended& self = attended.front();
  const Count tokens = self.rows * self.queries;
  Block made;
  made.module = write.module(parent, name);
  for (std::size_t i = 0; i < attended.size(); ++i) {
    const std::string number = std::to_string(i + 1);
    made.norms.push_back(norm(write, made.module, "norm_" + number, tokens, self.width));
    made.attentions.push_back(
        attention(write, made.module, "attention_" + number, attended[i], fused && i == 0));
  }
  made.norms.push_back(norm(write, made.module, "norm_mlp", tokens, self.width));
  made.mlp = feed_forward(write, made.module, tokens, self.width, inner);
  made.dropout = pointwise(write, made.module, "dropout", tokens * self.width);
  return made;
}

void call(ModelWriter& write, const FeedForward& mlp) {
  write.begin(mlp.module, mlp.layers.front().inputs * kFloatBytes);
  for (const Layer& layer : mlp.layers) write.call(layer);
  write.end(mlp.layers.back().outputs * kFloatBytes);
}

void call(ModelWriter& write, const Block& block) {
  const Count bytes = block.dropout.inputs * kFloatBytes;
  const Count memory = block.attentions.size() > 1 ? block.attentions[1].projections[1].inputs : 0;
  write.begin(block.module, bytes + memory * kFloatBytes);
  for (std::size_t i = 0; i < block.attentions.size(); ++i) {
    write.call(block.norms[i]);
    call(write, block.attentions[i]);
    write.compute(0, 3 * bytes);
  }
  write.call(block.norms.back());
  call(write, block.mlp);
  write.call(block.dropout);
  write.compute(0, 3 * bytes);
  write.end(bytes);
}

SyntheticModel gpt(const GptSize& size, bool nested) {
  ModelWriter write;
  const Count tokens = Count{size.rows} * size.length, width = size.width;
  const int body = nested ? write.module(0, "transformer") : 0;
  const Layer words = embedding(write, body, "wte", tokens, size.vocabulary, width);
  const Layer places = embedding(write, body, "wpe", tokens, size.length, width);
  const int blocks_at = nested ? write.list(body, "h") : 0;
  const Attended attended{size.rows, size.length, size.length, width, width};
  std::vector<Block> blocks;
  for (int i = 0; i < size.layers; ++i) {
    const std::string name = (nested ? "" : "block") + std::to_string(i);
    blocks.push_back(block(write, blocks_at, name, {attended}, 4 * width, true));
  }
  const Layer last = norm(write, body, "ln_f", tokens, width);
  const Layer logits = nested ? tied_head(write, words, tokens, width, size.vocabulary)
                              : linear(write, 0, "lm_head", tokens, width, size.vocabulary);
  write.begin(0, tokens * kFloatBytes);
  if (nested) write.begin(body, tokens * kFloatBytes);
  write.call(words);
  write.call(places);
  write.compute(0, 3 * tokens * width * kFloatBytes);
  for (const Block& each : blocks) call(write, each);
  write.call(last);
  if (nested) write.end(tokens * width * kFloatBytes);
  write.call(logits);
  write.end(tokens * size.vocabulary * kFloatBytes);
  return std::move(write).take();
}

/// Embedding, blocks and a last norm of one side of a T5.
struct Side {
  int module = 0;
  Layer embed;
  std::vector<Block> blocks;
  Layer last;
};

Side side(ModelWriter& write, const std::string& name, int layers, const T5Size& size,
          const std::vector<Attended>& attended) {
  const Count tokens = attended[0].rows * attended[0].queries, width = size.width;
  Side made;
  made.module = write.module(0, name);
  const Count vocabulary = name == "encoder" ? size.vocabulary : 0;
  made.embed = embedding(write, made.module, "embed", tokens, vocabulary, width);
  const int list = write.list(made.module, "block");
  for (int i = 0; i < layers; ++i) {
    made.blocks.push_back(
        block(write, list, std::to_string(i), attended, size.feed_forward, false));
  }
  made.last = norm(write, made.module, "final_norm", tokens, width);
  return made;
}

void call(ModelWriter& write, const Side& side, Count memory) {
  write.begin(side.module, (side.embed.inputs + memory) * kFloatBytes);
  write.call(side.embed);
  for (const Block& each : side.blocks) call(write, each);
  write.call(side.last);
  write.end(side.last.outputs * kFloatBytes);
}

}  // namespace

SyntheticModel flat_gpt(const GptSize& size) { return gpt(size, false); }
SyntheticModel nested_gpt(const GptSize& size) { return gpt(size, true); }

SyntheticModel t5(const T5Size& size) {
  ModelWriter write;
  const Count width = size.width, rows = size.rows;
  const Count source = size.source_length, target = size.target_length;
  const Side encoder = side(write, "encoder", size.encoder_layers, size,
                            {{rows, source, source, width, size.inner}});
  const Side decoder =
      side(write, "decoder", size.decoder_layers, size,
           {{rows, target, target, width, size.inner}, {rows, target, source, width, size.inner}});
  write.tie(decoder.embed.module, encoder.embed.module);
  const Layer logits = tied_head(write, encoder.embed, rows * target, width, size.vocabulary);
  write.begin(0, rows * (source + target) * kFloatBytes);
  call(write, encoder, 0);
  call(write, decoder, rows * source * width);
  write.call(logits);
  write.end(logits.outputs * kFloatBytes);
  return std::move(write).take();
}

}  // namespace smp::partitioning
