// samples/models/unet.cpp: down, bottom, up.
#include "unet.h"

namespace models {
namespace {

constexpr int64_t kSide = 32;

nn::Conv2d conv3x3(int64_t in, int64_t out) {
  return nn::Conv2d(nn::Conv2dOptions(in, out, 3).padding(1));
}

/// `x` twice as large, beside what the same level saw on the way down.
Tensor joined(const Tensor& x, const Tensor& skip) {
  return torch::cat({torch::upsample_nearest2d(x, skip.sizes().slice(2)), skip}, 1);
}

}  // namespace

DoubleConvImpl::DoubleConvImpl(int64_t in, int64_t out)
    : first_(register_module("first", conv3x3(in, out))),
      second_(register_module("second", conv3x3(out, out))) {}

Tensor DoubleConvImpl::forward(const Tensor& x) {
  return torch::relu(second_(torch::relu(first_(x))));
}

UNetImpl::UNetImpl(int64_t channels)
    : down1_(register_module("down1", DoubleConv(1, channels))),
      down2_(register_module("down2", DoubleConv(channels, 2 * channels))),
      down3_(register_module("down3", DoubleConv(2 * channels, 4 * channels))),
      bottom_(register_module("bottom", DoubleConv(4 * channels, 4 * channels))),
      up3_(register_module("up3", DoubleConv(8 * channels, 2 * channels))),
      up2_(register_module("up2", DoubleConv(4 * channels, channels))),
      up1_(register_module("up1", DoubleConv(2 * channels, channels))),
      head_(register_module("head", nn::Conv2d(nn::Conv2dOptions(channels, 1, 1)))) {}

Tensor UNetImpl::forward(const Tensor& x) {
  const auto skip1 = down1_(x);
  const auto skip2 = down2_(torch::max_pool2d(skip1, 2));
  const auto skip3 = down3_(torch::max_pool2d(skip2, 2));
  auto y = bottom_(torch::max_pool2d(skip3, 2));
  y = up3_(joined(y, skip3));
  y = up2_(joined(y, skip2));
  y = up1_(joined(y, skip1));
  return head_(y);
}

std::pair<Tensor, Tensor> draw_rectangles(int64_t rows) {
  const auto corner = torch::randint(kSide / 2, {rows, 2, 1});
  const auto size = torch::randint(kSide / 4, kSide / 2, {rows, 2, 1});
  const auto place = torch::arange(kSide);
  const auto inside = ((place >= corner) & (place < corner + size)).to(torch::kFloat);
  const auto mask = (inside.select(1, 0).unsqueeze(2) * inside.select(1, 1).unsqueeze(1));
  const auto target = mask.unsqueeze(1);
  return {target + 0.5 * torch::randn_like(target), target};
}

}  // namespace models
