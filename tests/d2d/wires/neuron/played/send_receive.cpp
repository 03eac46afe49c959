// The played libnrt: asynchronous send and receive between cores of any processes of the machine.
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <utility>

#include "d2d/wires/neuron/played/process.h"

namespace smp::played {

struct Request {
  Communicator* communicator = nullptr;
  nrt_tensor* tensor = nullptr;
  std::size_t offset = 0, size = 0;
  int looks = 0;
  std::uint64_t moved = 0;   // bytes, those of the length included
  std::uint64_t length = 0;  // as its sender says
  std::vector<std::byte> arrived;
  bool is_done = false, is_told = false;
  int lag = 0;  // looks of a sender after its receiver has all
};

struct Communicator {
  int own = 0, peer = 0;
  bool sends = false, is_tested = false;
  int looks = 0;
  unsigned patience = 0;                          // looks at requests that were not done
  bool is_first = true;                           // the first request takes longer
  std::deque<std::unique_ptr<Request>> requests;  // told ones stay until they are flushed
  Machine::Stream& stream() const {
    const auto from = static_cast<std::size_t>(sends ? own : peer);
    const auto to = static_cast<std::size_t>(sends ? peer : own);
    return machine().streams[from][to];
  }
  pid_t other() const { return sends ? stream().receiver : stream().sender; }
};

Process::Process() = default;
Process::~Process() {
  for (auto* const tensor : tensors) delete tensor;
}

namespace {

bool is_enabled() {
  const char* const gate = std::getenv("NEURON_RT_ASYNC_SENDRECV_EXPERIMENTAL_ENABLED");
  const char* const port = std::getenv("NEURON_RT_ASYNC_SENDRECV_BOOTSTRAP_PORT");
  return gate != nullptr && std::string_view(gate) == "1" && port != nullptr;
}

Communicator* find(void* handle) {
  for (auto& [core, all] : process().communicators) {
    for (auto& each : all) {
      if (each.get() == handle) return each.get();
    }
  }
  return nullptr;
}

int open(const char* ip, int peer, int core, bool sends, void** handle) {
  auto& own = process();
  const auto found = own.communicators.find(core);
  if (found == own.communicators.end() || ip == nullptr || peer < 0) return kFailure;
  if (static_cast<int>(found->second.size()) >= own.knobs.communicators) return kResource;
  auto made = std::make_unique<Communicator>();
  made->own = core;
  made->peer = peer - own.knobs.first_absolute;
  if (made->peer < 0 || made->peer >= kMostCores) return kFailure;
  made->own -= own.knobs.first_absolute;
  made->sends = sends;
  made->looks = random_looks();
  const MachineLock lock(machine());
  (sends ? made->stream().sender : made->stream().receiver) = ::getpid();
  *handle = made.get();
  found->second.push_back(std::move(made));
  return kSuccess;
}

constexpr std::size_t kLength = sizeof(std::uint64_t);

void send_on(Machine::Stream& stream, Request& request) {
  auto room = Machine::Stream::kBytes - (stream.written - stream.read);
  if (request.moved == 0) {
    if (room < kLength) return;
    const std::uint64_t length = request.size;
    copy_in(stream, reinterpret_cast<const std::byte*>(&length), kLength);
    request.moved = kLength;
    room -= kLength;
  }
  const auto done = request.moved - kLength;
  const auto part = std::min<std::size_t>(room, request.size - done);
  auto& tensor = checked(request.tensor, request.offset, request.size);
  copy_in(stream, bytes_of(tensor, request.offset + done), part);
  request.moved += part;
  request.is_done = request.moved == request.size + kLength;
}

void receive_on(Machine::Stream& stream, Request& request) {
  auto there = stream.written - stream.read;
  if (request.moved == 0) {
    if (there < kLength) return;
    copy_out(stream, reinterpret_cast<std::byte*>(&request.length), kLength);
    request.moved = kLength;
    request.arrived.resize(request.size);
    there -= kLength;
  }
  if (request.length != request.size) return;  // nobody says what happens then
  const auto done = request.moved - kLength;
  const auto part = std::min<std::size_t>(there, request.size - done);
  copy_out(stream, request.arrived.data() + done, part);
  request.moved += part;
  request.is_done = request.moved == request.size + kLength;
}

/// Moves the requests of a communicator on, one after the other.
void move_on(Communicator& communicator) {
  const MachineLock lock(machine());
  for (auto& request : communicator.requests) {
    if (request->is_done) continue;
    if (request->looks-- > 0) return;
    auto& stream = communicator.stream();
    communicator.sends ? send_on(stream, *request) : receive_on(stream, *request);
    if (!request->is_done) return;
  }
}

int post(nrt_tensor* tensor, std::size_t offset, std::size_t size, void* handle, bool sends,
         void** request) {
  auto& own = process();
  auto* const communicator = find(handle);
  if (communicator == nullptr || communicator->sends != sends) return kInvalidHandle;
  if (!communicator->is_tested) return kFailure;  // it may not be connected
  checked(tensor, offset, size);
  const auto pending = std::count_if(communicator->requests.begin(), communicator->requests.end(),
                                     [](const auto& each) { return !each->is_told; });
  if (pending >= own.knobs.pending) return kResource;
  auto made = std::make_unique<Request>();
  made->communicator = communicator;
  made->tensor = tensor;
  made->offset = offset;
  made->size = size;
  made->looks = random_looks() + (std::exchange(communicator->is_first, false) ? 20 : 0);
  made->lag = sends ? random_looks() : 0;
  ++tensor->pending;
  ++own.counters.requests;
  *request = made.get();
  communicator->requests.push_back(std::move(made));
  return kSuccess;
}

Request* find_request(void* handle) {
  for (auto& [core, all] : process().communicators) {
    for (auto& each : all) {
      for (auto& request : each->requests) {
        if (request.get() == handle && !request->is_told) return request.get();
      }
    }
  }
  return nullptr;
}

/// Sends are gone once they are told, receives once they are flushed.
void forget(Communicator& communicator, const Request& request) {
  std::erase_if(communicator.requests, [&](const auto& each) { return each.get() == &request; });
}

}  // namespace
}  // namespace smp::played

using smp::played::Communicator;
using smp::played::kFailure;
using smp::played::kInvalidHandle;
using smp::played::kSuccess;
using smp::played::kTimeout;
using smp::played::Request;

PLAYED_API int nrt_async_sendrecv_get_max_num_communicators_per_lnc(int* number) {
  PLAYED_CALL();
  *number = own.knobs.communicators;
  return kSuccess;
}

PLAYED_API int nrt_async_sendrecv_get_max_num_pending_request(int* number) {
  PLAYED_CALL();
  *number = own.knobs.pending;
  return kSuccess;
}

/// @param core  as the host numbers it, whatever this process sees
PLAYED_API int nrt_async_sendrecv_init(int core) {
  PLAYED_CALL();
  const auto inside = core - own.knobs.first_absolute;
  const bool is_own = std::count(own.cores.begin(), own.cores.end(), inside) > 0;
  const bool may = smp::played::is_enabled() && is_own && own.refused.count(core) == 0;
  if (!may || own.communicators.count(core) > 0) return kFailure;
  own.communicators[core];
  return kSuccess;
}

PLAYED_API int nrt_async_sendrecv_connect(const char* ip, int peer, int core, void** handle) {
  PLAYED_CALL();
  return smp::played::open(ip, peer, core, true, handle);
}

PLAYED_API int nrt_async_sendrecv_accept(const char* ip, int peer, int core, void** handle) {
  PLAYED_CALL();
  return smp::played::open(ip, peer, core, false, handle);
}

PLAYED_API int nrt_async_sendrecv_test_comm(void* handle, bool* done) {
  PLAYED_CALL();
  auto* const communicator = smp::played::find(handle);
  if (communicator == nullptr) return kInvalidHandle;
  const smp::played::MachineLock lock(smp::played::machine());
  const auto& stream = communicator->stream();
  const bool both = stream.sender != 0 && stream.receiver != 0;
  if (both && communicator->looks-- <= 0) communicator->is_tested = true;
  *done = communicator->is_tested;
  return kSuccess;
}

PLAYED_API int nrt_async_sendrecv_send_tensor(nrt_tensor* tensor, std::size_t offset,
                                              std::size_t size, void* handle, void** request) {
  PLAYED_CALL();
  return smp::played::post(tensor, offset, size, handle, true, request);
}

PLAYED_API int nrt_async_sendrecv_recv_tensor(nrt_tensor* tensor, std::size_t offset,
                                              std::size_t size, void* handle, void** request) {
  PLAYED_CALL();
  return smp::played::post(tensor, offset, size, handle, false, request);
}

PLAYED_API int nrt_async_sendrecv_test_request(void* handle, bool* done, std::size_t* size) {
  PLAYED_CALL();
  auto* const request = smp::played::find_request(handle);
  if (request == nullptr) smp::played::die("a request is tested that is done or was never there");
  auto& communicator = *request->communicator;
  smp::played::move_on(communicator);
  *done = request->is_done;
  if (!request->is_done) {
    const pid_t other = communicator.other();
    // Now and then: to look at a process takes longer than all else here.
    const bool looks_for_peer = ++communicator.patience % 64 == 0 && other != ::getpid();
    const bool peer_is_lost = other == 0 || (looks_for_peer && smp::played::is_gone(other));
    const bool mismatch =
        request->moved > 0 && !communicator.sends && request->length != request->size;
    if ((!peer_is_lost && !mismatch) || own.knobs.silent_peers) return kSuccess;
    --request->tensor->pending;
    --own.counters.requests;
    smp::played::forget(communicator, *request);
    return mismatch ? kTimeout : kFailure;
  }
  if (request->lag-- > 0) {
    *done = false;
    return kSuccess;
  }
  *size = request->size;
  --request->tensor->pending;
  --own.counters.requests;
  if (own.counters.results++ == own.knobs.fail_result) {
    smp::played::forget(communicator, *request);
    return own.knobs.fail_status;
  }
  if (communicator.sends) {
    smp::played::forget(communicator, *request);
    return kSuccess;
  }
  request->is_told = true;
  // Until it is flushed anything may be there.
  auto& tensor = smp::played::checked(request->tensor, request->offset, request->size);
  std::memset(smp::played::bytes_of(tensor, request->offset), 0xdb, request->size);
  return kSuccess;
}

PLAYED_API int nrt_async_sendrecv_flush(int core) {
  PLAYED_CALL();
  const auto found = own.communicators.find(core);
  if (found == own.communicators.end()) return kFailure;
  ++own.counters.flushes;
  for (auto& communicator : found->second) {
    std::erase_if(communicator->requests, [](const auto& request) {
      if (!request->is_told) return false;
      auto& tensor = smp::played::checked(request->tensor, request->offset, request->size);
      std::memcpy(smp::played::bytes_of(tensor, request->offset), request->arrived.data(),
                  request->size);
      return true;
    });
  }
  return kSuccess;
}

PLAYED_API int nrt_async_sendrecv_close(int core) {
  PLAYED_CALL();
  const auto found = own.communicators.find(core);
  if (found == own.communicators.end()) return kFailure;
  const bool in_order =
      std::all_of(found->second.begin(), found->second.end(), [](const auto& each) {
        return each->is_tested && std::all_of(each->requests.begin(), each->requests.end(),
                                              [](const auto& one) { return one->is_told; });
      });
  for (auto& communicator : found->second) {
    for (auto& request : communicator->requests) {
      if (request->is_told) continue;
      --request->tensor->pending;
      --own.counters.requests;
    }
  }
  own.communicators.erase(found);
  if (!in_order) own.refused.insert(core);
  return in_order ? kSuccess : kFailure;
}
