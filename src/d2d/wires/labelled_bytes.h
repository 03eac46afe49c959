// d2d/wires/labelled_bytes.h: messages of a wire's own among the control bytes that it posts over
// another wire. A label behind each tells them apart, so control bytes need not be moved.
#pragma once

#include <cstddef>
#include <cstring>
#include <span>
#include <utility>

#include "base/check.h"
#include "d2d/wire/byte_buffer.h"
#include "d2d/wire/wire.h"

namespace smp::d2d {

/// Posts a copy of `bytes`, and `label` behind them, over `wire`.
template <class Label>
void post_labelled(Wire& wire, GlobalRank to, std::span<const std::byte> bytes, Label label) {
  auto message = wire.buffers().take();
  message.resize(bytes.size() + sizeof label);
  if (!bytes.empty()) std::memcpy(message.data(), bytes.data(), bytes.size());
  std::memcpy(message.data() + bytes.size(), &label, sizeof label);
  wire.post(to, std::move(message));
}

/// Takes the label off what `source` posted to `rank`, and returns it; `bytes` are the rest.
template <class Label>
Label take_label(ByteBuffer& bytes, GlobalRank rank, GlobalRank source) {
  Label label{};
  SMP_ASSERT(bytes.size() >= sizeof label, "rank ", rank, ": rank ", source, " sent ", bytes.size(),
             " bytes");
  const auto rest = bytes.size() - sizeof label;
  std::memcpy(&label, bytes.data() + rest, sizeof label);
  bytes.resize(rest);
  return label;
}

}  // namespace smp::d2d
