// server/message.h: what module servers tell each other (paper App. B), and its wire form.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "d2d/transport.h"

namespace smp::server {

enum class Kind : std::uint8_t {
  kForward = 1,     ///< run a module
  kBackward,        ///< run backward through a record
  kResponse,        ///< the answer to either
  kRelease,         ///< a record will not be used any more
  kForwardDone,     ///< a microbatch's body reached its first backward
  kMicrobatchDone,  ///< a microbatch's body ended
  kStop,            ///< the step ended; carries the outputs of the body
  kAbort,           ///< the step failed; carries the error
  kCollective,      ///< barrier, broadcast, gather outside of steps
  kLeaving,         ///< the sender takes part in nothing any more; `request`: collectives it sent
  kFinish,          ///< all microbatches are done; the answer: all gradients are summed
};
const char* name_of(Kind kind) noexcept;

/// The caller's LibTorch modes, which the owner takes over.
struct Modes {
  bool grad_mode = true;
  bool training = true;
  bool autocast = false;
  at::ScalarType autocast_dtype = at::kBFloat16;
};

/// An exception on its way to another rank.
struct Failure {
  int rank = -1;  ///< where it was thrown
  std::string text;
};

struct Message {
  Kind kind = Kind::kForward;
  std::int64_t step = 0;      ///< of this rank pair's step counter; for collectives their number
  std::uint64_t request = 0;  ///< of the sender; a response repeats it
  std::uint64_t record = 0;   ///< at the owner; 0: none
  std::int32_t module = -1;
  std::uint64_t call = 0;  ///< CallEntry::key
  std::int32_t microbatch = -1;
  bool late = false;              ///< belongs to what follows the body's first backward
  std::uint64_t frozen_hash = 0;  ///< of every parameter's requires_grad at the sender
  Modes modes;
  bool keep_graph = false;
  std::string requires_grad;  ///< one byte a tensor
  std::string body;           ///< values other than tensors
  std::vector<at::Tensor> tensors;
  std::optional<Failure> failure;
};

d2d::Frame encode(Message&& message);
/// @throws InternalError if the header is not one of ours.
Message decode(d2d::Frame&& frame);

}  // namespace smp::server
