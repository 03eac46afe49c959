// samples/ncf/ncf.cpp: see the header. Only the constructor knows that tables may be spread.
#include "ncf.h"

#include <stdexcept>

namespace ncf {
namespace {

constexpr int kHiddenLayers = 3;  // each half as wide as what it reads

}  // namespace

NcfConfig NcfConfig::preset(const std::string& name) {
  if (name == "demo") return {};
  if (name == "paper") return {318'133, 1792, 64, 512};
  throw std::invalid_argument("no sizes called '" + name + "'; there are demo and paper");
}

NcfImpl::NcfImpl(const NcfConfig& config, bool spread) : sparse_(config.sparse) {
  {
    const smp::tensor_parallelism marked(spread);  // the tables, and nothing else
    user_gmf_ = table("user_gmf", config.users, config.gmf_width);
    item_gmf_ = table("item_gmf", config.items, config.gmf_width);
    user_mlp_ = table("user_mlp", config.users, config.mlp_width);
    item_mlp_ = table("item_mlp", config.items, config.mlp_width);
  }
  auto width = 2 * config.mlp_width;
  for (int i = 0; i < kHiddenLayers; ++i, width /= 2) {
    hidden_.push_back(linear("hidden" + std::to_string(i), width, width / 2));
  }
  score_ = linear("score", config.gmf_width + width, 1);
}

nn::Embedding NcfImpl::table(const std::string& name, std::int64_t rows, std::int64_t width) {
  auto made = register_module(
      name, nn::Embedding(torch::nn::EmbeddingOptions(rows, width).sparse(sparse_)));
  const torch::NoGradGuard no_grad;
  made->weight.mul_(0.1);  // small at first: a deviation of 0.1
  return made;
}

nn::Linear NcfImpl::linear(const std::string& name, std::int64_t in, std::int64_t out) {
  return register_module(name, nn::Linear(in, out));
}

Tensor NcfImpl::forward(const Tensor& user, const Tensor& item) {
  const auto product = user_gmf_(user) * item_gmf_(item);
  auto x = torch::cat({user_mlp_(user), item_mlp_(item)}, -1);
  for (auto& layer : hidden_) x = torch::relu(layer(x));
  return score_(torch::cat({product, x}, -1)).squeeze(-1);
}

}  // namespace ncf
