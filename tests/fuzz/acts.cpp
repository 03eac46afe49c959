// fuzz/acts.cpp
#include "fuzz/acts.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <torch/torch.h>

#include <exception>
#include <optional>
#include <thread>

#include "base/check.h"
#include "smp/smp.h"

namespace smp::fuzz {
namespace acts {
namespace {

using at::Tensor;
namespace nn = torch::nn;
namespace init = torch::nn::init;
using Acts = std::vector<Act>;
using Shape = std::vector<std::int64_t>;

Shape a_shape(Dice& dice) {
  return dice.one_of({Shape{20}, {4, 5}, {3}, {2, 3, 4}, {5, 5}, {1}, {33}, {6, 4}, {16}, {7}, {}});
}
at::ScalarType a_float(Dice& dice) {
  return dice.one_of({at::kFloat, at::kFloat, at::kFloat, at::kDouble, at::kBFloat16, at::kHalf});
}
at::TensorOptions options(Dice& dice) {
  if (dice.chance(.5)) return {};
  const auto typed = at::TensorOptions(a_float(dice));
  return dice.chance(.15) ? typed.device(at::kCPU) : typed;
}
at::Generator& default_generator() {
  return const_cast<at::Generator&>(at::detail::getDefaultCPUGenerator());
}
Tensor square(Builder& b, Dice& dice) {
  const auto flat = b.floats(dice).flatten();
  const auto n = std::min<std::int64_t>(flat.size(0), 9) >= 9 ? 3 : flat.size(0) >= 4 ? 2 : 1;
  return flat.slice(0, 0, n * n).reshape({n, n});
}
Tensor definite(Builder& b, Dice& dice) {
  const auto root = square(b, dice).to(at::kDouble);
  return root.matmul(root.t()) + torch::eye(root.size(0), at::kDouble);
}

// ---- making ----------------------------------------------------------------------------------

void make(Builder& b, Dice& dice, const Acts&) {
  const auto shape = a_shape(dice);
  const auto how = options(dice);
  switch (dice.below(9)) {
    case 0:
      return b.add(torch::zeros(shape, how));
    case 1:
      return b.add(torch::ones(shape, how));
    case 2:
      return b.add(torch::full(shape, dice.number(-2, 2), how));
    case 3:
      return b.add(torch::arange(dice.between(1, 30), how));
    case 4:
      return b.add(torch::linspace(0, 1, dice.between(1, 20), how));
    case 5:
      return b.add(torch::eye(dice.between(1, 6), how));
    case 6:
      return b.add(torch::empty(shape, how).fill_(dice.number(-1, 1)));
    case 7:
      return b.add(torch::zeros_like(b.pick(dice)));
    default:
      return b.add(b.pick(dice).new_ones(shape));
  }
}

void draw(Builder& b, Dice& dice, const Acts&) {
  const auto shape = a_shape(dice);
  const auto how = options(dice);
  switch (dice.below(9)) {
    case 0:
    case 1:
      return b.add(torch::randn(shape, how));
    case 2:
    case 3:
      return b.add(torch::rand(shape, how));
    case 4:
      return b.add(torch::randint(dice.between(2, 9), shape));
    case 5:
      return b.add(torch::randperm(dice.between(1, 30)));
    case 6:
      return b.add(torch::normal(dice.number(-1, 1), .5, shape));
    case 7:
      return b.add(torch::rand_like(b.floats(dice)));
    default:
      return b.add(torch::randn(shape, at::kComplexFloat));
  }
}

void from_data(Builder& b, Dice& dice, const Acts&) {
  std::vector<float> data(12);
  for (auto& value : data) value = static_cast<float>(dice.number(-1, 1));
  if (dice.chance(.5)) return b.add(torch::tensor(data));
  if (dice.chance(.3)) return b.add(torch::tensor(data, b.floats(dice).options()));
  b.add(torch::from_blob(data.data(), {3, 4}, at::kFloat).clone());
}

// ---- drawing and writing in place ------------------------------------------------------------

void fill(Builder& b, Dice& dice, const Acts&) {
  const at::NoGradGuard no_grad;
  auto x = b.floats(dice);
  switch (dice.below(10)) {
    case 0:
      x.normal_(0, dice.number(.1, 2));
      break;
    case 1:
      x.uniform_(-1, dice.number(0, 2));
      break;
    case 2:
      x.bernoulli_(dice.number(0, 1));
      break;
    case 3:
      x.exponential_(1.5);
      break;
    case 4:
      x.random_(7);
      break;
    case 5:
      x.log_normal_(0, .5);
      break;
    case 6:
      x.geometric_(.4);
      break;
    case 7:
      x.cauchy_();
      break;
    case 8:
      x.zero_();
      break;
    default:
      x.bernoulli_(x.detach().clone().sigmoid_());
  }
}

void initialise(Builder& b, Dice& dice, const Acts&) {
  auto x = b.floats(dice);
  if (dice.chance(.3) && x.dim() > 1) x = dice.chance(.5) ? x.t() : x.slice(0, 0, 1);
  switch (dice.below(9)) {
    case 0:
      init::xavier_uniform_(x);
      break;
    case 1:
      init::kaiming_normal_(x);
      break;
    case 2:
      init::orthogonal_(x);
      break;
    case 3:
      init::sparse_(x, .4);
      break;
    case 4:
      init::eye_(x);
      break;
    case 5:
      init::constant_(x, .25);
      break;
    case 6:
      init::normal_(x, .1, .5);
      break;
    case 7:
      init::dirac_(x);
      break;
    default:
      init::uniform_(x, -.5, .5);
  }
}

void write(Builder& b, Dice& dice, const Acts&) {
  const at::NoGradGuard no_grad;
  auto x = b.pick(dice);
  const auto y = b.pick(dice);
  switch (dice.below(11)) {
    case 0:
      x.add_(y);
      break;
    case 1:
      x.mul_(dice.number(-2, 2));
      break;
    case 2:
      x.copy_(y);
      break;
    case 3:
      x.fill_(dice.number(-1, 1));
      break;
    case 4:
      x.clamp_(-.5, .5);
      break;
    case 5:
      x.masked_fill_(x.gt(.3), .1);
      break;
    case 6:
      x.index_put_({torch::randint(std::max<std::int64_t>(1, x.size(0)), {2})}, 3);
      break;
    case 7:
      x[0] = dice.number(-1, 1);
      break;
    case 8:
      x.sub_(y.sum());
      break;
    case 9:
      x.triu_();
      break;
    default:
      x.index_fill_(0, torch::zeros({1}, at::kLong), .5);
  }
}

// ---- views and arithmetic --------------------------------------------------------------------

void view(Builder& b, Dice& dice, const Acts&) {
  const auto x = b.pick(dice);
  switch (dice.below(13)) {
    case 0:
      return b.add(x.select(0, 0));
    case 1:
      return b.add(x.slice(0, 0, 2));
    case 2:
      return b.add(x.t());
    case 3:
      return b.add(x.view({-1}));
    case 4:
      return b.add(x.unsqueeze(0));
    case 5:
      return b.add(x.detach());
    case 6:
      return b.add(x.diagonal());
    case 7:
      return b.add(x.expand({2, x.size(0)}));
    case 8:
      return b.add(x.chunk(2).back());
    case 9:
      return b.add(x.reshape({-1, 1}));
    case 10:
      return b.add(x.is_complex() ? torch::view_as_real(x) : x.unbind().front());
    case 11:
      return b.add(x.as_strided({2}, {1}));
    default:
      return b.add(x.view_as(b.pick(dice)));
  }
}

void compute(Builder& b, Dice& dice, const Acts&) {
  const auto x = b.pick(dice), y = b.pick(dice);
  switch (dice.below(16)) {
    case 0:
      return b.add(x + y);
    case 1:
      return b.add(x * dice.number(-1, 1));
    case 2:
      return b.add(torch::matmul(x, y.t()));
    case 3:
      return b.add(x.sum(0));
    case 4:
      return b.add(torch::cat({x, y}));
    case 5:
      return b.add(torch::stack({x, x}));
    case 6:
      return b.add(torch::where(x > 0, x, -x));
    case 7:
      return b.add(x.to(a_float(dice)));
    case 8:
      return b.add(x.clone());
    case 9:
      return b.add(torch::softmax(b.floats(dice), 0));
    case 10:
      return b.add(torch::exp(x * -.5) / (1 + x.abs()));
    case 11:
      return b.add(x.type_as(y));
    case 12:
      return b.add(torch::tril(x, -1));
    case 13:
      return b.add(b.floats(dice).std());
    case 14:
      return b.add(x.to(y.device(), y.scalar_type()));
    default:
      return b.add(torch::dropout(b.floats(dice), .4, true));
  }
}

/// Operators of which nobody would think in a constructor.
void compute_oddly(Builder& b, Dice& dice, const Acts&) {
  const auto x = b.floats(dice);
  const auto flat = x.flatten();
  switch (dice.below(24)) {
    case 0:
      return b.add(std::get<0>(flat.cummax(0)));
    case 1:
      return b.add(std::get<0>(flat.sort()));
    case 2:
      return b.add(std::get<1>(flat.topk(std::min<std::int64_t>(2, flat.size(0)))));
    case 3:
      return b.add(flat.cumsum(0));
    case 4:
      return b.add(torch::linalg_inv(definite(b, dice)));
    case 5:
      return b.add(torch::linalg_cholesky(definite(b, dice)));
    case 6:
      return b.add(std::get<1>(torch::linalg_svd(square(b, dice).to(at::kFloat))));
    case 7:
      return b.add((flat > 0).nonzero());
    case 8:
      return b.add(std::get<0>(at::_unique(flat)));
    case 9:
      return b.add(torch::multinomial(flat.to(at::kFloat).abs() + .1, 3, true));
    case 10:
      return b.add(torch::one_hot(torch::randint(4, {5})));
    case 11:
      return b.add(x.to_sparse().to_dense());
    case 12:
      return b.add(torch::quantize_per_tensor(x.to(at::kFloat), .1, 10, at::kQUInt8).dequantize());
    case 13:
      return b.add(std::get<0>(
          torch::embedding_bag(torch::rand({6, 4}), torch::arange(5), torch::tensor({0, 3}))));
    case 14:
      return b.add(torch::tril_indices(3, 4));
    case 15:
      return b.add(torch::pdist(x.to(at::kFloat).reshape({-1, 1})));
    case 16:
      return b.add(torch::rrelu(x, .1, .3, true));
    case 17:
      return b.add(flat.masked_select(flat > 0));
    case 18:
      return b.add(flat.index({torch::randint(flat.size(0), {3})}));
    case 19:
      return b.add(torch::bincount(torch::randint(5, {9})));
    case 20:
      return b.add(torch::fft_fft(flat.to(at::kFloat)).abs());
    case 21:
      return b.add(torch::segment_reduce(torch::rand({8}), "sum", torch::tensor({3, 5})));
    case 22:
      return b.add(torch::poisson(x.abs().to(at::kFloat)));
    default:
      return b.add(torch::bernoulli(x.sigmoid()));
  }
}

// ---- values that are asked for -----------------------------------------------------------------

void read(Builder& b, Dice& dice, const Acts& inner) {
  const auto x = b.floats(dice);
  switch (dice.below(5)) {
    case 0:
      return b.see(base::concat("sum ", x.sum().item<double>()));
    case 1:
      return b.see(base::concat("equal ", torch::equal(x, b.pick(dice))));
    case 2: {
      const auto copy = x.detach().to(at::kCPU, at::kFloat).contiguous();
      std::vector<double> values;
      for (const auto& value : copy.flatten().unbind()) values.push_back(value.item<double>());
      return b.see(base::concat("values ", at::ArrayRef<double>(values)));
    }
    case 3:
      b.add(torch::full({2}, x.max().item<double>()));
      return;
    default:
      if (x.mean().item<double>() > 0) b.run(inner);
  }
}

// ---- generators --------------------------------------------------------------------------------

void seed(Builder& b, Dice& dice, const Acts& inner) {
  switch (dice.below(6)) {
    case 0:
      torch::manual_seed(dice.between(0, 3));
      return b.run(inner);
    case 1: {
      const auto state = default_generator().get_state();
      if (dice.chance(.5)) torch::manual_seed(7);
      b.run(inner);
      return default_generator().set_state(state);
    }
    case 2: {
      auto own = default_generator().clone();
      b.add(torch::randn(a_shape(dice), own, at::TensorOptions()));
      b.add(torch::rand({20}, own, at::TensorOptions()));
      return;
    }
    case 3: {
      auto own = at::make_generator<at::CPUGeneratorImpl>(5);
      auto x = torch::empty(a_shape(dice));
      x.normal_(0, 1, own);
      b.add(x);
      b.add(torch::randint(5, {4}, own));
      return b.see(
          base::concat("next of own ", at::check_generator<at::CPUGeneratorImpl>(own)->random()));
    }
    case 4: {
      const auto shared = default_generator();
      b.add(torch::empty({20}).uniform_(0, 1, shared));
      return b.add(torch::randn({5}, shared, at::TensorOptions()));
    }
    default:
      return b.see(base::concat(
          "next ", at::check_generator<at::CPUGeneratorImpl>(default_generator())->random()));
  }
}

// ---- threads and modes -------------------------------------------------------------------------

void on_thread(Builder& b, Dice& dice, const Acts& inner) {
  std::exception_ptr error;
  const int what = dice.below(3);
  const auto x = b.floats(dice);
  if (what == 2) {
    const at::NoGradGuard no_grad;
    return at::parallel_for(0, 4, 1, [&](std::int64_t begin, std::int64_t end) {
      const at::NoGradGuard on_that_thread;
      for (auto i = begin; i < end; ++i) {
        if (x.dim() > 0 && i < x.size(0)) x[i].fill_(static_cast<double>(i));
      }
    });
  }
  std::thread([&] {
    try {
      if (what == 0) return b.run(inner);
      const at::NoGradGuard no_grad;
      auto noise = torch::randn_like(x);
      if (x.dim() > 0) noise = torch::randn(x.sizes(), x.options().device(at::kCPU));
      auto target = x;
      target.add_(noise);
    } catch (...) {
      error = std::current_exception();
    }
  }).join();
  if (error) std::rethrow_exception(error);
}

void in_mode(Builder& b, Dice& dice, const Acts& inner) {
  switch (dice.below(4)) {
    case 0: {
      const at::NoGradGuard no_grad;
      return b.run(inner);
    }
    case 1: {
      const auto outer = c10::get_default_dtype();
      torch::set_default_dtype(caffe2::TypeMeta::Make<double>());
      b.run(inner);
      return torch::set_default_dtype(outer);
    }
    case 2: {
      std::optional<delay_param_initialization> nested;
      if (b.delayed()) nested.emplace();
      return b.run(inner);
    }
    default:
      for (int i = 0; i < 2; ++i) b.run(inner);
  }
}

// ---- modules -----------------------------------------------------------------------------------

std::shared_ptr<nn::Module> a_layer(Dice& dice) {
  switch (dice.below(9)) {
    case 0:
      return nn::Linear(5, 7).ptr();
    case 1:
      return nn::BatchNorm1d(5).ptr();
    case 2:
      return nn::Embedding(nn::EmbeddingOptions(9, 4).padding_idx(2)).ptr();
    case 3:
      return nn::LSTM(3, 4).ptr();
    case 4:
      return nn::LayerNorm(nn::LayerNormOptions({5})).ptr();
    case 5:
      return nn::Conv1d(nn::Conv1dOptions(2, 4, 3)).ptr();
    case 6:
      return nn::GRUCell(4, 3).ptr();
    case 7:
      return nn::Bilinear(2, 3, 4).ptr();
    default:
      return nn::EmbeddingBag(6, 3).ptr();
  }
}

void add_layer(Builder& b, Dice& dice, const Acts&) {
  const auto layer = b.module().register_module(b.fresh_name(), a_layer(dice));
  if (dice.chance(.2)) layer->to(dice.one_of({at::kDouble, at::kBFloat16}));
  if (dice.chance(.2)) {
    const at::NoGradGuard no_grad;
    for (auto& parameter : layer->parameters()) parameter.normal_(0, .02);
  }
  for (const auto& parameter : layer->parameters()) b.add(parameter);
  b.own(*layer);
}

void run_layer(Builder& b, Dice& dice, const Acts&) {
  switch (dice.below(5)) {
    case 0: {
      auto norm = nn::BatchNorm1d(5);
      b.module().register_module(b.fresh_name(), norm);
      for (int i = dice.between(1, 2); i > 0; --i) b.add(norm->forward(torch::randn({4, 5})));
      return;
    }
    case 1: {
      nn::Sequential body(nn::Conv1d(1, 2, 3), nn::ReLU(), nn::Flatten(), nn::Dropout(.3));
      b.module().register_module(b.fresh_name(), body);
      return b.add(body->forward(torch::zeros({2, 1, 6})));
    }
    case 2: {
      nn::LSTM lstm(nn::LSTMOptions(3, 4));
      b.module().register_module(b.fresh_name(), lstm);
      return b.add(std::get<0>(lstm->forward(torch::rand({2, 3, 3}))));
    }
    case 3: {
      nn::Embedding table(6, 4);
      b.module().register_module(b.fresh_name(), table);
      return b.add(table->forward(torch::randint(6, {3})));
    }
    default: {
      nn::InstanceNorm1d norm(nn::InstanceNorm1dOptions(3).affine(true).track_running_stats(true));
      b.module().register_module(b.fresh_name(), norm);
      return b.add(norm->forward(torch::randn({2, 3, 8})));
    }
  }
}

void differentiate(Builder& b, Dice& dice, const Acts&) {
  auto w = torch::rand({3, 3}).requires_grad_();
  const bool odd = dice.chance(.1);
  const auto y = odd ? torch::linalg_inv(w * .1 + torch::eye(3)) : (w * 2).tanh().matmul(w);
  if (dice.chance(.5)) {
    y.sum().backward();
    b.add(w.grad().clone());
  } else {
    b.add(torch::autograd::grad({y.sum()}, {w})[0]);
  }
}

void share(Builder& b, Dice& dice, const Acts&) {
  auto x = b.floats(dice);
  if (!x.is_leaf()) x = x.detach();
  switch (dice.below(3)) {
    case 0: {
      b.register_parameter(x);
      return b.register_parameter(x);
    }
    case 1: {
      auto taking = torch::empty(x.sizes(), x.scalar_type());
      taking.set_data(x.detach().clone());
      return b.add(taking);
    }
    default: {
      auto taking = torch::rand({2, 2});
      taking.set_data(torch::tensor({{1.f, 2.f}, {3.f, 4.f}}));
      return b.add(taking);
    }
  }
}

/// Registers a variable, or keeps it in a member.
void hold(Builder& b, Dice& dice, const Acts&) {
  const auto x = b.pick(dice);
  if (dice.chance(.15)) return b.keep(x);
  const bool trains = (x.is_floating_point() || x.is_complex()) && dice.chance(.6);
  if (trains) {
    b.register_parameter(x.is_leaf() ? x : x.detach());
  } else {
    b.module().register_buffer(b.fresh_name(), x);
  }
}

}  // namespace
}  // namespace acts

const std::vector<Row>& rows() {
  using namespace acts;
  static const std::vector<Row> all{
      {"make", 8, false, &make},
      {"draw", 10, false, &draw},
      {"from data", 3, false, &from_data},
      {"fill", 8, false, &fill},
      {"initialise", 6, false, &initialise},
      {"write", 8, false, &write},
      {"view", 8, false, &view},
      {"compute", 8, false, &compute},
      {"compute oddly", 6, false, &compute_oddly},
      {"read", 3, true, &read},
      {"seed", 3, true, &seed},
      {"thread", 2, true, &on_thread},
      {"mode", 3, true, &in_mode},
      {"layer", 5, false, &add_layer},
      {"run layer", 2, false, &run_layer},
      {"differentiate", 1, false, &differentiate},
      {"share", 3, false, &share},
      {"hold", 10, false, &hold},
  };
  return all;
}

void Builder::own(const torch::nn::Module& layer) {
  for (const auto& parameter : layer.parameters()) {
    owners_[parameter.unsafeGetTensorImpl()] = module_;
  }
}

void Builder::register_parameter(const at::Tensor& parameter) {
  const auto owner = owners_.try_emplace(parameter.unsafeGetTensorImpl(), module_).first->second;
  module_->register_parameter(fresh_name(),
                              owner == module_ ? parameter : parameter.detach().clone());
}

void Builder::keep(const at::Tensor& member) {
  const bool owned = owners_.count(member.unsafeGetTensorImpl()) > 0;
  members_.push_back(owned ? member.detach().clone() : member);
}

void Builder::build(torch::nn::Module& module, const std::vector<Act>& acts) {
  module_ = &module;
  run(acts);
}

void Builder::run(const std::vector<Act>& acts) {
  for (const auto& act : acts) {
    Dice dice(act.seed);
    const auto& row = rows()[static_cast<std::size_t>(act.row)];
    try {
      row.run(*this, dice, act.inner);
    } catch (const Error&) {  // of this library
      throw;
    } catch (const std::exception&) {
      see(std::string(row.text) + kThrows);
    }
  }
}

at::Tensor& Builder::pick(Dice& dice) {
  if (variables_.empty()) variables_.push_back(torch::rand({4, 5}));
  return variables_[static_cast<std::size_t>(dice.below(static_cast<int>(variables_.size())))];
}

at::Tensor Builder::floats(Dice& dice) {
  const auto& x = pick(dice);
  return x.is_floating_point() ? x : x.is_complex() ? torch::real(x) : x.to(at::kFloat);
}

}  // namespace smp::fuzz
