// server/message.cpp: Message to and from its protobuf header.
#include "server/message.h"

#include <utility>

#include "base/check.h"
#include "server/message.pb.h"

namespace smp::server {
namespace {

/// Re-used, because building one costs more than filling it.
wire::Message& scratch() {
  static thread_local wire::Message header;
  header.Clear();
  return header;
}

void put_modes(const Modes& modes, wire::Message& header) {
  header.set_grad_mode(modes.grad_mode);
  header.set_training(modes.training);
  header.set_autocast(modes.autocast);
  if (modes.autocast) header.set_autocast_dtype(static_cast<int>(modes.autocast_dtype));
}

Modes get_modes(const wire::Message& header) {
  Modes modes{header.grad_mode(), header.training(), header.autocast()};
  if (modes.autocast) modes.autocast_dtype = static_cast<at::ScalarType>(header.autocast_dtype());
  return modes;
}

}  // namespace

const char* name_of(Kind kind) noexcept {
  switch (kind) {
    case Kind::kForward:
      return "forward";
    case Kind::kBackward:
      return "backward";
    case Kind::kResponse:
      return "response";
    case Kind::kRelease:
      return "release";
    case Kind::kForwardDone:
      return "forward done";
    case Kind::kMicrobatchDone:
      return "microbatch done";
    case Kind::kStop:
      return "stop";
    case Kind::kAbort:
      return "abort";
    case Kind::kCollective:
      return "collective";
    case Kind::kLeaving:
      return "leaving";
    case Kind::kFinish:
      return "finish";
  }
  return "unknown";
}

d2d::Frame encode(Message&& message) {
  auto& header = scratch();
  header.set_kind(static_cast<std::uint32_t>(message.kind));
  header.set_step(message.step);
  header.set_request(message.request);
  header.set_record(message.record);
  header.set_module(message.module);
  header.set_call(message.call);
  header.set_microbatch(message.microbatch);
  header.set_late(message.late);
  header.set_frozen_hash(message.frozen_hash);
  put_modes(message.modes, header);
  header.set_keep_graph(message.keep_graph);
  header.set_requires_grad(std::move(message.requires_grad));
  header.set_body(std::move(message.body));
  if (message.failure) {
    header.set_failed(true);
    header.set_error_rank(message.failure->rank);
    header.set_error_text(std::move(message.failure->text));
  }
  d2d::Frame frame;
  header.SerializeToString(&frame.header);
  frame.tensors = std::move(message.tensors);
  return frame;
}

Message decode(d2d::Frame&& frame) {
  auto& header = scratch();
  SMP_ASSERT(header.ParseFromString(frame.header), frame.header.size(), " bytes");
  Message message;
  message.kind = static_cast<Kind>(header.kind());
  message.step = header.step();
  message.request = header.request();
  message.record = header.record();
  message.module = header.module();
  message.call = header.call();
  message.microbatch = header.microbatch();
  message.late = header.late();
  message.frozen_hash = header.frozen_hash();
  message.modes = get_modes(header);
  message.keep_graph = header.keep_graph();
  message.requires_grad = std::move(*header.mutable_requires_grad());
  message.body = std::move(*header.mutable_body());
  if (header.failed()) message.failure = Failure{header.error_rank(), header.error_text()};
  message.tensors = std::move(frame.tensors);
  return message;
}

}  // namespace smp::server
