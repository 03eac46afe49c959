// d2d/wires/neuron/neuron_send_receive.cpp: see the header.
#include "d2d/wires/neuron/neuron_send_receive.h"

#include <cstdlib>

#include "base/check.h"
#include "d2d/wires/neuron/neuron_status.h"
#include "smp/error.h"

namespace smp::d2d {
namespace {

constexpr const char* kGate = "NEURON_RT_ASYNC_SENDRECV_EXPERIMENTAL_ENABLED";
constexpr const char* kPort = "NEURON_RT_ASYNC_SENDRECV_BOOTSTRAP_PORT";

std::string value_of(const char* variable) {
  const char* const value = std::getenv(variable);
  return base::concat(variable, value == nullptr ? " is not set" : "=",
                      value == nullptr ? "" : value);
}

}  // namespace

std::string NeuronDoing::text() const {
  if (bytes == 0) return what + peer;
  return base::concat(what, bytes, " bytes, transfer ", transfer, ", with ", peer);
}

NeuronSendReceive::NeuronSendReceive(NeuronRuntime& runtime, RelativeCore core, int peers)
    : runtime_(runtime),
      calls_(runtime.library().send_receive),
      relative_(core),
      core_(runtime.claim().absolute(core)) {
  runtime_.require_usable("nrt_async_sendrecv_init");
  int communicators = 0;
  require(calls_.get_max_communicators(&communicators), "asking for limits",
          "nrt_async_sendrecv_get_max_num_communicators_per_lnc");
  require(calls_.get_max_pending(&most_pending_), "asking for limits",
          "nrt_async_sendrecv_get_max_num_pending_request");
  SMP_REQUIRE_AS(PeerLostError, 2 * peers <= communicators, "rank ", runtime.rank(),
                 ", Neuron core ", core_, ": ", 2 * peers, " communicators for ", peers,
                 " peers, and the runtime has ", communicators,
                 " for a core; tensors have to go through host memory.");
  require(calls_.init(core_.value()),
          base::concat("starting asynchronous send and receive, which goes over EFA also within "
                       "an instance, and has to be switched on (",
                       value_of(kGate), ", wanted is 1; ", value_of(kPort), ")"),
          "nrt_async_sendrecv_init");
  open_ = true;
}

NeuronSendReceive::~NeuronSendReceive() {
  if (!open_ || runtime_.is_closed()) return;
  calls_.close(core_.value());  // what it says was to be avoided: nobody is left to hear it
}

NeuronSendReceive::Communicator NeuronSendReceive::connect(const NeuronAddress& peer) {
  runtime_.require_usable("nrt_async_sendrecv_connect");
  Communicator made = nullptr;
  require(calls_.connect(peer.ip.c_str(), peer.core.value(), core_.value(), &made),
          base::concat("connecting to core ", peer.core, " of ", peer.ip),
          "nrt_async_sendrecv_connect");
  return made;
}

NeuronSendReceive::Communicator NeuronSendReceive::accept(const NeuronAddress& peer) {
  runtime_.require_usable("nrt_async_sendrecv_accept");
  Communicator made = nullptr;
  require(calls_.accept(peer.ip.c_str(), peer.core.value(), core_.value(), &made),
          base::concat("accepting core ", peer.core, " of ", peer.ip), "nrt_async_sendrecv_accept");
  return made;
}

bool NeuronSendReceive::is_connected(Communicator communicator, const NeuronDoing& doing) {
  runtime_.require_usable("nrt_async_sendrecv_test_comm");
  bool done = false;
  const int status = calls_.test_comm(communicator, &done);
  if (status != neuron_status::kSuccess) {
    runtime_.fail(status, doing.text(), "nrt_async_sendrecv_test_comm", relative_);
  }
  return done;
}

std::optional<NeuronSendReceive::Request> NeuronSendReceive::started(int status, Request request,
                                                                     const NeuronDoing& doing,
                                                                     const char* call) {
  if (status == neuron_status::kResource) return std::nullopt;  // too many at a time
  if (status != neuron_status::kSuccess) runtime_.fail(status, doing.text(), call, relative_);
  return request;
}

std::optional<NeuronSendReceive::Request> NeuronSendReceive::send(Communicator communicator,
                                                                  const NeuronPlace& place,
                                                                  std::size_t size,
                                                                  const NeuronDoing& doing) {
  runtime_.require_usable("nrt_async_sendrecv_send_tensor");
  SMP_ASSERT(size <= place.room, size, " bytes where a tensor has ", place.room);
  Request request = nullptr;
  const int status = calls_.send_tensor(place.tensor, place.offset, size, communicator, &request);
  return started(status, request, doing, "nrt_async_sendrecv_send_tensor");
}

std::optional<NeuronSendReceive::Request> NeuronSendReceive::receive(Communicator communicator,
                                                                     const NeuronPlace& place,
                                                                     std::size_t size,
                                                                     const NeuronDoing& doing) {
  runtime_.require_usable("nrt_async_sendrecv_recv_tensor");
  SMP_ASSERT(size <= place.room, size, " bytes where a tensor has ", place.room);
  Request request = nullptr;
  const int status = calls_.recv_tensor(place.tensor, place.offset, size, communicator, &request);
  return started(status, request, doing, "nrt_async_sendrecv_recv_tensor");
}

NeuronSendReceive::Moved NeuronSendReceive::test(Request request, const NeuronDoing& doing) {
  runtime_.require_usable("nrt_async_sendrecv_test_request");
  bool done = false;
  std::size_t size = 0;
  const int status = calls_.test_request(request, &done, &size);
  if (status != neuron_status::kSuccess) {
    runtime_.fail(status, doing.text(), "nrt_async_sendrecv_test_request", relative_);
  }
  return done ? Moved(size) : std::nullopt;
}

void NeuronSendReceive::flush() {
  runtime_.require_usable("nrt_async_sendrecv_flush");
  require(calls_.flush(core_.value()), "making visible what was received",
          "nrt_async_sendrecv_flush");
}

void NeuronSendReceive::close() {
  if (!open_) return;
  runtime_.require_usable("nrt_async_sendrecv_close");
  open_ = false;
  require(calls_.close(core_.value()), "ending asynchronous send and receive",
          "nrt_async_sendrecv_close");
}

}  // namespace smp::d2d
