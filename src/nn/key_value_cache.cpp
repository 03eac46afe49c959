// nn/key_value_cache.cpp: see smp/nn/key_value_cache.h.
#include "smp/nn/key_value_cache.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "base/check.h"

namespace smp::nn {
namespace {

at::Tensor room_for(const at::Tensor& some, std::int64_t tokens) {
  auto sizes = some.sizes().vec();
  sizes[2] = tokens;
  return at::empty(sizes, some.options());
}

}  // namespace

std::pair<at::Tensor, at::Tensor> KeyValueCache::extended(const CachedTokens& tokens,
                                                          const at::Tensor& keys,
                                                          const at::Tensor& values) {
  SMP_REQUIRE(!at::GradMode::is_enabled(),
              "KeyValueCache: a cached call with gradients; make it under torch::NoGradGuard, as "
              "smp::generate does");
  const auto added = keys.size(2), length = tokens.begin + added;
  if (tokens.cache != cache_) rows_.clear();
  cache_ = tokens.cache;
  auto& own = rows_[tokens.row];
  if (tokens.begin == 0) {
    own = Rows();
    own.keys = room_for(keys, std::max(tokens.most, length));
    own.values = room_for(values, std::max(tokens.most, length));
  }
  SMP_REQUIRE(own.keys.defined() && own.length == tokens.begin && length <= own.keys.size(2) &&
                  own.keys.size(0) == keys.size(0),
              "KeyValueCache: tokens ", tokens.begin, " to ", length - 1, " of ", keys.size(0),
              " rows from row ", tokens.row, " on do not follow: ", own.length, " tokens of ",
              own.keys.defined() ? own.keys.size(0) : 0,
              " rows are kept. Calls of a cache have the same rows, from token 0 on, and no more "
              "than CachedTokens::most tokens");
  own.keys.narrow(2, tokens.begin, added).copy_(keys);
  own.values.narrow(2, tokens.begin, added).copy_(values);
  own.length = length;
  const std::pair all{own.keys.narrow(2, 0, length), own.values.narrow(2, 0, length)};
  if (tokens.last) rows_.erase(tokens.row);
  return all;
}

std::int64_t KeyValueCache::bytes() const {
  std::int64_t sum = 0;
  for (const auto& [row, own] : rows_) {
    sum += static_cast<std::int64_t>(own.keys.nbytes() + own.values.nbytes());
  }
  return sum;
}

}  // namespace smp::nn
