// deferred/operators/samples.cpp: one call of each, in the order of its schema.
#include "deferred/operators/samples.h"

#include <torch/torch.h>

#include <functional>
#include <map>
#include <string>

namespace smp::deferred {
namespace {

using at::Tensor;
using c10::IValue;
using torch::jit::Stack;
using Integers = std::vector<std::int64_t>;

/// Makes tensors, as ArgumentKinds says.
class Source {
 public:
  explicit Source(const ArgumentKinds& kinds) : kinds_(kinds) {}
  Tensor floats(at::IntArrayRef shape) {
    auto made = torch::rand(shape, place());
    return kinds_.requires_grad ? made.requires_grad_() : made;
  }
  /// Without a gradient, whatever is wanted.
  Tensor buffer(at::IntArrayRef shape) { return torch::rand(shape, place()); }
  Tensor indices(at::IntArrayRef shape, std::int64_t below) {
    return torch::randint(below, shape, place().dtype(at::kLong));
  }
  Tensor numbers(const Integers& values) {
    auto made = torch::empty({static_cast<std::int64_t>(values.size())}, place().dtype(at::kLong));
    for (std::size_t i = 0; i < values.size(); ++i) made[static_cast<int>(i)] = values[i];
    return made;
  }
  Tensor sparse() { return buffer({3, 4}).to_sparse(); }
  Tensor compressed() { return buffer({4, 4}).to_sparse_csr(); }
  Tensor quantized() { return at::quantize_per_tensor(buffer({3, 4}), .1, 2, at::kQInt8); }
  /// Has a Cholesky factor.
  Tensor definite() {
    const auto root = floats({3, 3});
    return root.matmul(root.t()) + torch::eye(3);
  }
  c10::List<Tensor> lstm_weights() { return weights(4); }
  c10::List<Tensor> gru_weights() { return weights(3); }
  c10::List<Tensor> rnn_weights() { return weights(1); }

 private:
  at::TensorOptions place() {
    return kinds_.first_real && made_++ == 0 ? at::TensorOptions(at::kCPU) : at::TensorOptions();
  }
  c10::List<Tensor> weights(std::int64_t gates) {
    return c10::List<Tensor>(
        {floats({gates * 5, 3}), floats({gates * 5, 5}), floats({gates * 5}), floats({gates * 5})});
  }

  const ArgumentKinds& kinds_;
  int made_ = 0;
};

using Sample = std::function<Stack(Source&)>;

Sample convolution(std::size_t dims, bool transposed) {
  return [=](Source& s) {
    Integers input{2, 4}, weight{4, 2};
    for (std::size_t i = 0; i < dims; ++i) input.push_back(6), weight.push_back(3);
    const auto all = [&](std::int64_t value) { return IValue(Integers(dims, value)); };
    const auto x = s.floats(input), w = s.floats(weight);
    const IValue groups = std::int64_t{2};
    if (!transposed) return Stack{x, w, s.floats({4}), all(2), all(1), all(1), groups};
    return Stack{x, w, s.floats({4}), all(2), all(1), all(1), groups, all(1)};
  };
}

Sample recurrent(const std::function<c10::List<Tensor>(Source&)>& weights, bool cell_state) {
  return [=](Source& s) {
    const auto x = s.floats({4, 2, 3});
    const IValue state = cell_state
                             ? IValue(c10::List<Tensor>({s.floats({1, 2, 5}), s.floats({1, 2, 5})}))
                             : IValue(s.floats({1, 2, 5}));
    return Stack{x, state, weights(s), true, std::int64_t{1}, 0.5, true, false, false};
  };
}

Sample matrices(const Integers& sum, const Integers& a, const Integers& b) {
  return [=](Source& s) {
    return Stack{s.floats(sum), s.floats(a), s.floats(b), std::int64_t{1}, 0.5};
  };
}

Sample cell(std::int64_t gates) {
  return [=](Source& s) {
    return Stack{s.floats({2, 3}),         s.floats({2, 5}),      s.floats({gates * 5, 3}),
                 s.floats({gates * 5, 5}), s.floats({gates * 5}), s.floats({gates * 5})};
  };
}

Stack normalisation(Source& s, bool training, bool cudnn) {
  Stack stack{s.floats({3, 4, 5}), s.floats({4}), s.floats({4}), s.buffer({4}),
              s.buffer({4}),       training,      0.3,           1e-5};
  if (cudnn) stack.emplace_back(false);
  return stack;
}

const std::map<std::string, Sample>& samples() {
  static const std::map<std::string, Sample> all{
      {"aten::conv1d", convolution(1, false)},
      {"aten::conv2d", convolution(2, false)},
      {"aten::conv3d", convolution(3, false)},
      {"aten::conv_transpose1d", convolution(1, true)},
      {"aten::conv_transpose2d.input", convolution(2, true)},
      {"aten::conv_transpose3d.input", convolution(3, true)},
      {"aten::lstm.input", recurrent([](Source& s) { return s.lstm_weights(); }, true)},
      {"aten::gru.input", recurrent([](Source& s) { return s.gru_weights(); }, false)},
      {"aten::rnn_tanh.input", recurrent([](Source& s) { return s.rnn_weights(); }, false)},
      {"aten::rnn_relu.input", recurrent([](Source& s) { return s.rnn_weights(); }, false)},
      {"aten::batch_norm", [](Source& s) { return normalisation(s, true, true); }},
      {"aten::instance_norm", [](Source& s) { return normalisation(s, true, true); }},
      {"aten::native_batch_norm", [](Source& s) { return normalisation(s, true, false); }},
      {"aten::_native_batch_norm_legit", [](Source& s) { return normalisation(s, true, false); }},
      {"aten::_batch_norm_impl_index", [](Source& s) { return normalisation(s, true, true); }},
      {"aten::layer_norm",
       [](Source& s) {
         return Stack{s.floats({3, 4}), Integers{4}, s.floats({4}), s.floats({4}), 1e-5, false};
       }},
      {"aten::group_norm",
       [](Source& s) {
         return Stack{
             s.floats({2, 4, 3}), std::int64_t{2}, s.floats({4}), s.floats({4}), 1e-5, false};
       }},
      {"aten::embedding",
       [](Source& s) {
         return Stack{s.floats({6, 3}), s.indices({2, 2}, 6), std::int64_t{1}, false, false};
       }},
      {"aten::embedding_bag",
       [](Source& s) {
         return Stack{s.floats({6, 3}),  s.indices({5}, 6),
                      s.numbers({0, 3}), false,
                      std::int64_t{1},   false,
                      IValue(),          false};
       }},
      {"aten::_embedding_bag",
       [](Source& s) {
         return Stack{s.floats({6, 3}),  s.indices({5}, 6),
                      s.numbers({0, 3}), false,
                      std::int64_t{0},   false,
                      IValue(),          false,
                      std::int64_t{-1}};
       }},
      {"aten::scaled_dot_product_attention",
       [](Source& s) {
         return Stack{s.floats({2, 2, 4, 8}),
                      s.floats({2, 2, 4, 8}),
                      s.floats({2, 2, 4, 8}),
                      IValue(),
                      0.3,
                      false,
                      IValue(),
                      false};
       }},
      {"aten::ctc_loss.IntList",
       [](Source& s) {
         return Stack{s.floats({6, 2, 5}).log_softmax(2),
                      s.numbers({1, 2, 3, 1}),
                      Integers{6, 6},
                      Integers{2, 2},
                      std::int64_t{0},
                      std::int64_t{1},
                      false};
       }},
      {"aten::segment_reduce",
       [](Source& s) {
         return Stack{s.floats({8}),
                      std::string("sum"),
                      s.numbers({3, 5}),
                      IValue(),
                      IValue(),
                      std::int64_t{0},
                      false,
                      IValue()};
       }},
      {"aten::linalg_cholesky",
       [](Source& s) {
         return Stack{s.definite(), false};
       }},
      {"aten::linalg_cholesky_ex",
       [](Source& s) {
         return Stack{s.definite(), false, false};
       }},
      {"aten::linalg_inv_ex",
       [](Source& s) {
         return Stack{s.definite(), false};
       }},
      {"aten::cholesky",
       [](Source& s) {
         return Stack{s.definite(), false};
       }},
      {"aten::linalg_householder_product",
       [](Source& s) {
         return Stack{s.floats({3, 3}), s.floats({2})};
       }},
      {"aten::orgqr",
       [](Source& s) {
         return Stack{s.floats({3, 3}), s.floats({2})};
       }},
      {"aten::addbmm", matrices({3, 5}, {2, 3, 4}, {2, 4, 5})},
      {"aten::addbmm_", matrices({3, 5}, {2, 3, 4}, {2, 4, 5})},
      {"aten::baddbmm", matrices({2, 3, 5}, {2, 3, 4}, {2, 4, 5})},
      {"aten::addmm", matrices({3, 5}, {3, 4}, {4, 5})},
      {"aten::addmm_", matrices({3, 5}, {3, 4}, {4, 5})},
      {"aten::addmv", matrices({3}, {3, 4}, {4})},
      {"aten::addmv_", matrices({3}, {3, 4}, {4})},
      {"aten::addr", matrices({3, 4}, {3}, {4})},
      {"aten::addr_", matrices({3, 4}, {3}, {4})},
      {"aten::mv",
       [](Source& s) {
         return Stack{s.floats({3, 4}), s.floats({4})};
       }},
      {"aten::lstm_cell",
       [](Source& s) {
         return Stack{s.floats({2, 3}),  c10::List<Tensor>({s.floats({2, 5}), s.floats({2, 5})}),
                      s.floats({20, 3}), s.floats({20, 5}),
                      s.floats({20}),    s.floats({20})};
       }},
      {"aten::gru_cell", cell(3)},
      {"aten::rnn_tanh_cell", cell(1)},
      {"aten::rnn_relu_cell", cell(1)},
      {"aten::lstm.data",
       [](Source& s) {
         return Stack{s.floats({6, 3}),
                      s.numbers({2, 2, 1, 1}).cpu(),
                      c10::List<Tensor>({s.floats({1, 2, 5}), s.floats({1, 2, 5})}),
                      s.lstm_weights(),
                      true,
                      std::int64_t{1},
                      0.,
                      true,
                      false};
       }},
      {"aten::convolution",
       [](Source& s) {
         return Stack{s.floats({2, 3, 6, 6}), s.floats({4, 3, 3, 3}), s.floats({4}), Integers{1, 1},
                      Integers{1, 1},         Integers{1, 1},         false,         Integers{0, 0},
                      std::int64_t{1}};
       }},
      {"aten::native_group_norm",
       [](Source& s) {
         return Stack{s.floats({2, 4, 3}), s.floats({4}),   s.floats({4}),   std::int64_t{2},
                      std::int64_t{4},     std::int64_t{3}, std::int64_t{2}, 1e-5};
       }},
      {"aten::nll_loss2d",
       [](Source& s) {
         return Stack{s.floats({2, 3, 4, 4}), s.indices({2, 4, 4}, 3), IValue(), std::int64_t{1},
                      std::int64_t{-100}};
       }},
      {"aten::pad_sequence",
       [](Source& s) {
         return Stack{c10::List<Tensor>({s.floats({3, 2}), s.floats({2, 2})}), true, 0.,
                      std::string("right")};
       }},
      {"aten::narrow.Tensor",
       [](Source& s) {
         return Stack{s.floats({4, 3}), std::int64_t{0}, s.indices({}, 2), std::int64_t{2}};
       }},
      {"aten::scatter_.reduce",
       [](Source& s) {
         return Stack{s.floats({3, 4}), std::int64_t{0}, s.indices({2, 4}, 3), s.floats({2, 4}),
                      std::string("add")};
       }},
      {"aten::index_fill_.int_Scalar",
       [](Source& s) {
         return Stack{s.floats({3, 4}), std::int64_t{1}, s.indices({2}, 4), 2.5};
       }},
      {"aten::index_put_",
       [](Source& s) {
         c10::List<std::optional<Tensor>> indices;
         indices.push_back(s.indices({4}, 3));
         return Stack{s.floats({3, 4}), indices, s.floats({4}), false};
       }},
      {"aten::grid_sampler_3d",
       [](Source& s) {
         return Stack{s.floats({1, 2, 3, 3, 3}), s.floats({1, 2, 2, 2, 3}), std::int64_t{0},
                      std::int64_t{0}, true};
       }},
      {"aten::coalesce", [](Source& s) { return Stack{s.sparse()}; }},
      {"aten::is_coalesced", [](Source& s) { return Stack{s.sparse()}; }},
      {"aten::indices", [](Source& s) { return Stack{s.sparse().coalesce()}; }},
      {"aten::values", [](Source& s) { return Stack{s.sparse().coalesce()}; }},
      {"aten::crow_indices", [](Source& s) { return Stack{s.compressed()}; }},
      {"aten::col_indices", [](Source& s) { return Stack{s.compressed()}; }},
      {"aten::to_dense",
       [](Source& s) {
         return Stack{s.sparse(), IValue(), IValue()};
       }},
      {"aten::mm",
       [](Source& s) {
         return Stack{s.sparse(), s.floats({4, 2})};
       }},
      {"aten::matmul",
       [](Source& s) {
         return Stack{s.sparse(), s.floats({4, 2})};
       }},
      {"aten::sparse_mask",
       [](Source& s) {
         return Stack{s.buffer({3, 4}), s.sparse().coalesce()};
       }},
      {"aten::dequantize.self", [](Source& s) { return Stack{s.quantized()}; }},
      {"aten::int_repr", [](Source& s) { return Stack{s.quantized()}; }},
      {"aten::q_scale", [](Source& s) { return Stack{s.quantized()}; }},
      {"aten::q_zero_point", [](Source& s) { return Stack{s.quantized()}; }},
      {"aten::qscheme", [](Source& s) { return Stack{s.quantized()}; }},
      {"aten::_nested_tensor_from_tensor_list",
       [](Source& s) {
         return Stack{c10::List<Tensor>({s.buffer({2, 3}), s.buffer({4, 3})}), IValue(), IValue(),
                      IValue(), IValue()};
       }},
      {"aten::upsample_nearest2d.vec",
       [](Source& s) {
         return Stack{s.floats({1, 2, 3, 3}), IValue(), std::vector<double>{2., 2.}};
       }},
      {"aten::linalg_solve",
       [](Source& s) {
         return Stack{s.floats({3, 3}) + torch::eye(3), s.floats({3, 2}), true};
       }},
      {"aten::linalg_inv",
       [](Source& s) {
         return Stack{s.floats({3, 3}) + torch::eye(3)};
       }},
      {"aten::sparse_coo_tensor.indices_size",
       [](Source& s) {
         return Stack{s.indices({2, 3}, 4),
                      s.floats({3}),
                      Integers{4, 4},
                      IValue(),
                      IValue(),
                      IValue(),
                      IValue(),
                      IValue()};
       }},
      {"aten::quantize_per_tensor",
       [](Source& s) {
         return Stack{s.floats({4, 4}), 0.1, std::int64_t{2},
                      static_cast<std::int64_t>(at::kQInt8)};
       }},
      {"aten::grid_sampler",
       [](Source& s) {
         return Stack{s.floats({1, 2, 4, 4}), s.floats({1, 3, 3, 2}), std::int64_t{0},
                      std::int64_t{0}, true};
       }},
      {"aten::multinomial",
       [](Source& s) {
         return Stack{s.floats({6}), std::int64_t{3}, false, IValue()};
       }},
      {"aten::cdist",
       [](Source& s) {
         return Stack{s.floats({4, 3}), s.floats({2, 3}), 2., IValue()};
       }},
      {"aten::nll_loss",
       [](Source& s) {
         return Stack{s.floats({4, 3}), s.indices({4}, 3), s.floats({3}), std::int64_t{1},
                      std::int64_t{-100}};
       }},
      {"aten::cross_entropy_loss",
       [](Source& s) {
         return Stack{s.floats({4, 3}), s.indices({4}, 3),  IValue(),
                      std::int64_t{1},  std::int64_t{-100}, 0.1};
       }},
      {"aten::stft",
       [](Source& s) {
         return Stack{s.floats({32}), std::int64_t{8}, std::int64_t{4}, std::int64_t{8},
                      IValue(),       false,           IValue(),        true,
                      IValue()};
       }},
      {"aten::one_hot",
       [](Source& s) {
         return Stack{s.indices({5}, 4), std::int64_t{-1}};
       }},
      {"aten::tril_indices",
       [](Source&) {
         return Stack{std::int64_t{3}, std::int64_t{4}, std::int64_t{0}, IValue(),
                      IValue(),        IValue(),        IValue()};
       }},
      {"aten::triu_indices",
       [](Source&) {
         return Stack{std::int64_t{3}, std::int64_t{4}, std::int64_t{0}, IValue(),
                      IValue(),        IValue(),        IValue()};
       }},
      {"aten::bincount",
       [](Source& s) {
         return Stack{s.indices({7}, 4), IValue(), std::int64_t{0}};
       }},
  };
  return all;
}

std::string full_name(const c10::OperatorHandle& op) {
  const auto& overload = op.schema().overload_name();
  return op.schema().name() + (overload.empty() ? "" : "." + overload);
}

}  // namespace

bool has_sample(const c10::OperatorHandle& op) { return samples().count(full_name(op)) > 0; }

Stack arguments_for(const c10::OperatorHandle& op, std::uint64_t seed, const ArgumentKinds& kinds) {
  const auto found = samples().find(full_name(op));
  if (found == samples().end() || seed % 3 == 2) return made_up_arguments(op, seed, kinds);
  Source source(kinds);
  return found->second(source);
}

}  // namespace smp::deferred
