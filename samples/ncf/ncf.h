// samples/ncf/ncf.h: neural collaborative filtering (He et al., WWW 2017, NeuMF): whether a user
// takes an item, from the product of two short vectors (GMF) and a network over two long ones
// (MLP).
//
// B pairs of a user and an item.
#pragma once

#include <smp/smp.h>
#include <torch/torch.h>

#include <cstdint>
#include <string>
#include <vector>

namespace ncf {

namespace nn = smp::nn;
using torch::Tensor;

struct NcfConfig {
  std::int64_t users = 2000;
  std::int64_t items = 256;
  std::int64_t gmf_width = 16;
  std::int64_t mlp_width = 64;
  /// Gradients of tables as rows instead of whole tables; not every optimizer takes them.
  bool sparse = false;

  /// "demo", or "paper": the sizes of §7.3, 318,133 users and 1,792 items.
  static NcfConfig preset(const std::string& name);
};

class NcfImpl : public torch::nn::Module {
 public:
  /// @param spread  the four tables over the ranks of a TP_GROUP, once the model is wrapped
  explicit NcfImpl(const NcfConfig& config, bool spread = true);
  /// user, item [B] int64 -> logits [B]
  Tensor forward(const Tensor& user, const Tensor& item);

 private:
  nn::Embedding table(const std::string& name, std::int64_t rows, std::int64_t width);
  nn::Linear linear(const std::string& name, std::int64_t in, std::int64_t out);

  const bool sparse_;
  nn::Embedding user_gmf_{nullptr}, item_gmf_{nullptr}, user_mlp_{nullptr}, item_mlp_{nullptr};
  std::vector<nn::Linear> hidden_;
  nn::Linear score_{nullptr};
};
SMP_MODULE(Ncf);

}  // namespace ncf
