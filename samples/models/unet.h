// samples/models/unet.h: a small U-Net: what a level on the way down computes is needed again by
// the level of the same size on the way up, so no cut is clean. B rows, C channels.
#pragma once

#include <smp/smp.h>
#include <torch/torch.h>

namespace models {

namespace nn = smp::nn;
using torch::Tensor;

/// Two convolutions of 3 x 3, each followed by a ReLU.
class DoubleConvImpl : public torch::nn::Module {
 public:
  DoubleConvImpl(int64_t in, int64_t out);
  /// [B, in, H, W] to [B, out, H, W].
  Tensor forward(const Tensor& x);

 private:
  nn::Conv2d first_, second_;
};
SMP_MODULE(DoubleConv);

class UNetImpl : public torch::nn::Module {
 public:
  explicit UNetImpl(int64_t channels = 16);
  /// [B, 1, 32, 32] images to [B, 1, 32, 32] scores, above 0 where a pixel belongs to a shape.
  Tensor forward(const Tensor& x);

 private:
  DoubleConv down1_, down2_, down3_, bottom_, up3_, up2_, up1_;
  nn::Conv2d head_;
};
SMP_MODULE(UNet);

/// Noisy images of one rectangle each, and where it is.
std::pair<Tensor, Tensor> draw_rectangles(int64_t rows);

}  // namespace models
