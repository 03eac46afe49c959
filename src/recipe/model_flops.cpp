// recipe/model_flops.cpp: see the header.
#include "smp/recipe/model_flops.h"

namespace smp {

double matrix_parameters(const DecoderShape& shape) {
  const auto width = static_cast<double>(shape.hidden_size);
  const auto heads = static_cast<double>(2 * shape.heads + 2 * shape.kv_heads);
  const double attention = width * heads * static_cast<double>(shape.head_dim);
  const double network =
      (shape.gated ? 3 : 2) * width * static_cast<double>(shape.intermediate_size);
  return static_cast<double>(shape.layers) * (attention + network) +
         width * static_cast<double>(shape.vocab_size);
}

double forward_flops(const DecoderShape& shape, std::int64_t length) {
  const auto tokens = static_cast<double>(length);
  const auto head_width = static_cast<double>(shape.heads * shape.head_dim);
  const double products = 2 * tokens * matrix_parameters(shape);
  return products + 4 * static_cast<double>(shape.layers) * tokens * tokens * head_width;
}

double training_flops(const DecoderShape& shape, std::int64_t length) {
  return 3 * forward_flops(shape, length);
}

}  // namespace smp
