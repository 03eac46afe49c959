// tp/layers/distributed_grouped_query_attention.cpp: see the header.
#include "smp/tp/distributed_grouped_query_attention.h"

#include <ATen/ATen.h>

#include "nn/causal_attention.h"
#include "smp/tp/batch_primitives.h"
#include "smp/tp/distributed_attention_core.h"
#include "tp/group/tensor_parallel.h"
#include "tp/layers/rotary_of_ranks.h"
#include "tp/slices/block_layout.h"
#include "tp/slices/block_products.h"
#include "tp/slices/split_rms_norm.h"

namespace smp::nn {
namespace {

constexpr const char* kGroupedAttention = "DistributedGroupedQueryAttention";

tp::HeadShare heads_for(const GroupedQueryAttentionOptions& options) {
  const auto& own = tp::TensorParallel::current();
  return {options.heads(), options.kv_heads(), options.rotary().head_dim(), own.size(), own.rank()};
}

/// Returns which heads of keys the heads of a rank have, as kernels take it: one for each group of
/// equally many heads, in order, or one for each head; none for a rank without heads.
at::Tensor keys_for_heads(const at::Tensor& keys, const tp::HeadShare& share) {
  const auto& key_of_head = share.key_of_head();
  const auto heads = static_cast<std::int64_t>(key_of_head.size()), count = keys.size(1);
  if (heads == 0) return keys.narrow(1, 0, 0);
  bool grouped = heads % count == 0;
  for (std::int64_t i = 0; grouped && i < heads; ++i) {
    grouped = key_of_head[static_cast<std::size_t>(i)] == i / (heads / count);
  }
  if (grouped) return keys;
  return keys.index_select(1, at::tensor(key_of_head, at::kLong).to(keys.device()));
}

}  // namespace

struct DistributedGroupedQueryAttentionImpl::Parts {
  Parts(const GroupedQueryAttentionOptions& options, const std::string& optimize)
      : layout(tp::layout_of_block(optimize, options.width(), kGroupedAttention)),
        heads(heads_for(options)),
        rotary(options.rotary()) {}

  /// Reshapes [.., S, heads·D] -> [.., heads, S, D] of normed heads.
  at::Tensor heads_of(const at::Tensor& channels, tp::SplitRmsNorm& norm) const {
    const auto split = channels.unflatten(-1, {-1, rotary.options.head_dim()});
    return (norm ? norm->of_own_rows(split) : split).transpose(1, 2);
  }

  const tp::Layout layout;
  const tp::HeadShare heads;
  RotaryEmbeddingImpl rotary;
  tp::SplitLinear query{nullptr}, key{nullptr}, value{nullptr}, output{nullptr};
  tp::SplitRmsNorm query_norm{nullptr}, key_norm{nullptr}, none{nullptr};
  DistributedAttentionCore core{nullptr};
};

DistributedGroupedQueryAttentionImpl::DistributedGroupedQueryAttentionImpl(
    const GroupedQueryAttentionImpl& whole, const std::string& optimize, tp::Keep keep)
    : options(whole.options), parts_(std::make_shared<Parts>(options, optimize)) {
  auto& own = *parts_;
  const auto into = [&](const char* name, const Linear& layer, const tp::ChannelShare& share) {
    return register_module(name,
                           tp::SplitLinear(*layer, tp::cut_of_first(own.layout, share), keep));
  };
  own.query = into("q_proj", whole.q_proj, own.heads.queries());
  own.key = into("k_proj", whole.k_proj, own.heads.keys());
  own.value = into("v_proj", whole.v_proj, own.heads.keys());
  own.output = register_module(
      "o_proj",
      tp::SplitLinear(*whole.o_proj, tp::cut_of_second(own.layout, own.heads.queries()), keep));
  if (!whole.q_norm.is_empty()) {
    const auto norm = [&](const char* name, const RMSNorm& of_heads) {
      return register_module(name, tp::SplitRmsNorm(*of_heads, tp::Layout::kSpeed, keep));
    };
    own.query_norm = norm("q_norm", whole.q_norm);
    own.key_norm = norm("k_norm", whole.k_norm);
  }
  own.core = register_module("core", DistributedAttentionCore(options.dropout()));
}

DistributedGroupedQueryAttentionImpl::DistributedGroupedQueryAttentionImpl(
    const GroupedQueryAttentionOptions& with, const std::string& optimize)
    : DistributedGroupedQueryAttentionImpl(GroupedQueryAttentionImpl(with), optimize,
                                           tp::Keep::kCopies) {}

DistributedGroupedQueryAttentionImpl::DistributedGroupedQueryAttentionImpl(
    GroupedQueryAttentionImpl& original)
    : DistributedGroupedQueryAttentionImpl(original, {}, tp::Keep::kAdopted) {}

DistributedGroupedQueryAttentionImpl::~DistributedGroupedQueryAttentionImpl() = default;

std::string DistributedGroupedQueryAttentionImpl::obstacle(
    const GroupedQueryAttentionImpl& original, int ranks) {
  return tp::obstacle_of_block(original.options.width(), ranks);
}

void DistributedGroupedQueryAttentionImpl::pretty_print(std::ostream& stream) const {
  stream << "smp::nn::DistributedGroupedQueryAttention(" << options.width()
         << ", heads=" << options.heads() << ", kv_heads=" << options.kv_heads() << ")";
}

/// What a rank has between blocks, and what it knows of the samples of all.
struct DistributedGroupedQueryAttentionImpl::Call {
  tp::Layout between;
  const at::Tensor& x;
  const at::Tensor& positions;
  const at::Tensor& tokens;
  std::int64_t length = 0;  // of the sequence, with kSequence
};

at::Tensor DistributedGroupedQueryAttentionImpl::forward(const at::Tensor& hidden,
                                                         const at::Tensor& positions,
                                                         const at::Tensor& tokens) {
  const auto layout = parts_->layout;
  tp::require_rows(layout, hidden, options.width(), /*sliced=*/false, 3, kGroupedAttention);
  const auto places = tp::rows_of_all(positions, hidden.size(0));
  const auto present = tp::rows_of_all(tokens, hidden.size(0));
  if (layout != tp::Layout::kMemory) return block({tp::Layout::kSpeed, hidden, places, present});
  const auto slices = slices_of_batch_for_tp(hidden, -1);
  return batch_of_slices_for_tp(block({layout, slices, places, present}), -1);
}

at::Tensor DistributedGroupedQueryAttentionImpl::forward_slices(const at::Tensor& slices,
                                                                const at::Tensor& positions,
                                                                const at::Tensor& tokens) {
  tp::require_rows(parts_->layout, slices, options.width(), /*sliced=*/true, 3, kGroupedAttention);
  return block({parts_->layout, slices, positions, tokens});
}

at::Tensor DistributedGroupedQueryAttentionImpl::of_parts(const at::Tensor& part,
                                                          std::int64_t length,
                                                          const at::Tensor& positions,
                                                          const at::Tensor& tokens) {
  return block({tp::Layout::kSequence, part, positions, tokens, length});
}

at::Tensor DistributedGroupedQueryAttentionImpl::block(const Call& call) {
  auto& own = *parts_;
  const auto& keys = own.heads.keys();
  const auto channels = tp::channels_between(
      call.between, call.x, {{own.query, own.heads.queries()}, {own.key, keys}, {own.value, keys}},
      call.length);
  return tp::joined_by(call.between, own.output, attend(channels, call.positions, call.tokens));
}

/// Returns the output of this rank's heads for the samples of all: [T·B, S, c·D]. Heads that pad
/// are not computed; they are zero.
at::Tensor DistributedGroupedQueryAttentionImpl::attend(const std::vector<at::Tensor>& channels,
                                                        const at::Tensor& positions,
                                                        const at::Tensor& tokens) {
  auto& own = *parts_;
  const auto size = options.rotary().head_dim(), real = own.heads.real_heads();
  const auto padding = channels[0].size(-1) - real * size;
  const auto real_channels = channels[0].narrow(-1, 0, real * size);
  const auto turned = tp::turned_for_ranks(own.rotary, own.heads_of(real_channels, own.query_norm),
                                           own.heads_of(channels[1], own.key_norm), positions);
  // A view would keep the queries and keys beside which they were made.
  const auto values = own.heads_of(channels[2], own.none).contiguous();
  const auto mask = causal_mask_for(channels[0], tokens, options.window());
  const auto mixed =
      own.core(std::get<0>(turned), keys_for_heads(std::get<1>(turned), own.heads),
               keys_for_heads(values, own.heads), mask, /*is_causal=*/!mask.defined())
          .transpose(1, 2)
          .flatten(2);
  return padding == 0 ? mixed : at::constant_pad_nd(mixed, {0, padding});
}

}  // namespace smp::nn
