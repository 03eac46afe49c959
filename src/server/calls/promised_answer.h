// server/calls/promised_answer.h: the answer to a promised call becomes what was promised, as far
// as that is possible (docs/design.md, Promised outputs).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "server/calls/outgoing_call.h"
#include "server/calls/remote_call.h"
#include "server/promises/expected_results.h"

namespace smp::server {

/// The arguments of a call that is not awaited.
struct HeldArguments {
  HeldArguments() = default;
  explicit HeldArguments(at::ArrayRef<at::Tensor> own);
  std::vector<at::Tensor> tensors;
  std::vector<std::uint32_t> versions;  ///< when the call was made
};

struct PromisedOutput {
  at::Tensor value;  ///< once it is here
  std::optional<c10::weak_intrusive_ptr<c10::TensorImpl>> promise;
  bool live = true;  ///< somebody may ask for it
  bool passed_on = false;
};

/// What an answer has brought.
enum class Outcome : std::uint8_t {
  kValues,
  kWithheld,  ///< no values
  kLinked     ///< tensors that are, or share memory with, those of the caller
};

/// What the caller has of a call that is not awaited.
struct PromisedResult {
  const std::shared_ptr<OutgoingCall>& call;  ///< whose record is known
  ExpectedResult& expected;                   ///< refused, if it is another
  const HeldArguments& arguments;
  std::vector<PromisedOutput>& outputs;  ///< get their values
  NodePointer<RemoteCall>& node;         ///< on which promises hang; made if one is needed
};

/// May suspend. Its settings and its record have been seen to.
/// @throws UnsupportedError  it is another result than was promised, and that cannot be put right
Outcome use_answer(const PromisedResult& result, ForwardResponse&& response);

}  // namespace smp::server
