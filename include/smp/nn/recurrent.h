// smp/nn/recurrent.h: RNN, LSTM and GRU, as layers and as cells, as in torch::nn but routed.
#pragma once

#include <torch/nn/modules/rnn.h>
#include <torch/nn/utils/rnn.h>

#include "smp/nn/layer.h"

namespace smp {

template <>
struct Codec<torch::nn::utils::rnn::PackedSequence> {
  using Sequence = torch::nn::utils::rnn::PackedSequence;
  static void encode(Writer& out, const Sequence& value) {
    detail::put_all(out, {"data", "batch_sizes", "sorted_indices", "unsorted_indices"},
                    value.data(), value.batch_sizes(), value.sorted_indices(),
                    value.unsorted_indices());
  }
  static Sequence decode(Reader& in) {
    return detail::get_all<Sequence>(
        in, detail::Parts<at::Tensor, at::Tensor, at::Tensor, at::Tensor>{});
  }
};

SMP_NN_RANDOM_LAYER(RNN, forward_with_packed_input)
SMP_NN_RANDOM_LAYER(LSTM, forward_with_packed_input)
SMP_NN_RANDOM_LAYER(GRU, forward_with_packed_input)
SMP_NN_LAYER(RNNCell)
SMP_NN_LAYER(LSTMCell)
SMP_NN_LAYER(GRUCell)

namespace nn {

using torch::nn::GRUCellOptions;
using torch::nn::GRUOptions;
using torch::nn::LSTMCellOptions;
using torch::nn::LSTMOptions;
using torch::nn::RNNCellOptions;
using torch::nn::RNNOptions;

}  // namespace nn
}  // namespace smp
