// module/products.h: operators whose results are worth keeping where the rest is computed again.
#pragma once

#include <array>

namespace smp::module {

/// Matrix products, convolutions and attention, by the names of LibTorch's operators, without
/// "aten::". Others are made of these, or are cheap.
inline constexpr std::array kProducts{"mm",
                                      "addmm",
                                      "bmm",
                                      "baddbmm",
                                      "mv",
                                      "addmv",
                                      "dot",
                                      "convolution",
                                      "_scaled_dot_product_flash_attention_for_cpu",
                                      "_scaled_dot_product_flash_attention",
                                      "_scaled_dot_product_efficient_attention",
                                      "_scaled_dot_product_cudnn_attention"};

}  // namespace smp::module
