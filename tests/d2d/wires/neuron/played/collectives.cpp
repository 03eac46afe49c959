// The played libnrt: collectives that a host drives, of which all-gather is played. Each is
// prepared for one time. Those of a core are done one after the other, and each waits for all of
// its sides.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "d2d/wires/neuron/played/process.h"

namespace smp::played {

struct Group {
  std::uint32_t* members;
  std::uint32_t own, size, own_of_all, all, core;
};
struct TensorList {
  nrt_tensor** tensors;
  std::size_t count;
};

/// What a caller gave, which is looked at again when a collective ends: nobody says when it is
/// read.
struct Arguments {
  Group* group = nullptr;
  TensorList *inputs = nullptr, *outputs = nullptr;
};

/// A collective of two cores.
struct Prepared {
  Arguments given;
  int vnc = 0, own = 0, peer = 0;  // relative; of the instance
  std::uint32_t place = 0;
  nrt_tensor *input = nullptr, *output = nullptr;
  std::uint64_t sent = 0, came = 0;  // bytes, those of the length included
  std::uint64_t length = 0;          // as the other side says
  std::int64_t begun = 0;
  bool is_scheduled = false;
};

void copy_in(Machine::Stream& stream, const std::byte* from, std::size_t size) {
  for (std::size_t done = 0; done < size;) {
    const auto at = stream.written % Machine::Stream::kBytes;
    const auto part = std::min(size - done, Machine::Stream::kBytes - at);
    std::memcpy(stream.ring.data() + at, from + done, part);
    stream.written += part;
    done += part;
  }
}

void copy_out(Machine::Stream& stream, std::byte* to, std::size_t size) {
  for (std::size_t done = 0; done < size;) {
    const auto at = stream.read % Machine::Stream::kBytes;
    const auto part = std::min(size - done, Machine::Stream::kBytes - at);
    std::memcpy(to + done, stream.ring.data() + at, part);
    stream.read += part;
    done += part;
  }
}

namespace {

constexpr std::size_t kLength = sizeof(std::uint64_t);
constexpr std::uint32_t kPair = 2;

Machine::Stream& stream(int from, int to) {
  return machine().gathers[static_cast<std::size_t>(from)][static_cast<std::size_t>(to)];
}

void give(Prepared& own) {
  auto& out = stream(own.own, own.peer);
  auto room = Machine::Stream::kBytes - (out.written - out.read);
  if (own.sent == 0) {
    if (room < kLength) return;
    const std::uint64_t length = own.input->size;
    out.sender = process().pid;
    copy_in(out, reinterpret_cast<const std::byte*>(&length), kLength);
    own.sent = kLength;
    room -= kLength;
  }
  const auto done = own.sent - kLength;
  const auto part = std::min<std::size_t>(room, own.input->size - done);
  copy_in(out, bytes_of(*own.input, done), part);
  own.sent += part;
}

void take(Prepared& own) {
  auto& in = stream(own.peer, own.own);
  auto there = in.written - in.read;
  if (own.came == 0) {
    if (there < kLength) return;
    in.receiver = process().pid;
    copy_out(in, reinterpret_cast<std::byte*>(&own.length), kLength);
    own.came = kLength;
    there -= kLength;
  }
  if (own.length != own.input->size) return;  // nobody says what happens then
  const auto done = own.came - kLength;
  const auto part = std::min<std::size_t>(there, own.input->size - done);
  copy_out(in, bytes_of(*own.output, (1 - own.place) * own.input->size + done), part);
  own.came += part;
}

}  // namespace

bool gather(Prepared& own, int& status) {
  if (own.begun == 0) own.begun = now_ns();
  {
    const MachineLock lock(machine());
    give(own);
    take(own);
  }
  const auto& given = own.given;
  const bool are_there = given.group->own == own.place && given.inputs->tensors[0] == own.input &&
                         given.outputs->tensors[0] == own.output;
  if (!are_there) die("arguments of a collective are gone before its end");
  const auto all = own.input->size + kLength;
  if (own.sent == all && own.came == all) {
    std::memcpy(bytes_of(*own.output, own.place * own.input->size), bytes_of(*own.input, 0),
                own.input->size);
  } else {
    const bool waits_for_ever = PLAYED_MINOR >= 33;  // and warns
    if (waits_for_ever || now_ns() - own.begun < process().knobs.collective_ms * 1'000'000LL) {
      return false;
    }
    status = kTimeout;
  }
  --own.input->pending;
  --own.output->pending;
  return true;
}

}  // namespace smp::played

using smp::played::Group;
using smp::played::kFailure;
using smp::played::kInvalid;
using smp::played::kInvalidHandle;
using smp::played::kPair;
using smp::played::kSuccess;
using smp::played::Prepared;
using smp::played::TensorList;

namespace {

constexpr int kBytes = 3;  // NRT_DTYPE_UINT8 from SDK 2.28 on; it was 5
#if PLAYED_MINOR < 31
constexpr std::uint64_t kCollectives = 4;  // the execution unit
#else
constexpr std::uint64_t kCollectives = 2;
#endif

int schedule(Prepared** handle, int queue, int* result, smp::played::Tracker* tracker,
             std::uint64_t* sequence) {
  auto& own = smp::played::process();
  if (handle == nullptr || queue != 0) return kInvalid;
  const auto found = own.prepared.find(*handle);
  if (found == own.prepared.end() || (*handle)->is_scheduled) {
    smp::played::die("a collective is scheduled that is not prepared, or again");
  }
  smp::played::Copy wanted;
  wanted.result = result;
  wanted.tracker = tracker;
  wanted.collective = *handle;
  const int status = smp::played::put(wanted, (*handle)->vnc, kCollectives, queue, sequence);
  if (status != kSuccess) return status;
  (*handle)->is_scheduled = true;
  ++(*handle)->input->pending;
  ++(*handle)->output->pending;
  return kSuccess;
}

}  // namespace

/// @param vnc  relative
PLAYED_API int nrt_cc_global_comm_init(std::uint32_t vnc, std::uint32_t number, std::uint32_t all) {
  PLAYED_CALL();
  if (std::getenv("NEURON_RT_ROOT_COMM_ID") == nullptr) return kFailure;
  if (vnc >= own.cores.size() || number >= all || all > smp::played::kMostCores) return kInvalid;
  own.devices[static_cast<int>(vnc)] = {number, all};
  const smp::played::MachineLock lock(smp::played::machine());
  smp::played::machine().core_of_device[number] = own.cores[vnc] + 1;
  return kSuccess;
}

PLAYED_API int nrta_cc_prepare(Group* group, TensorList* inputs, TensorList* outputs, int type,
                               int operation, int collective, Prepared** prepared) {
  PLAYED_CALL();
  if (group == nullptr || inputs == nullptr || outputs == nullptr || prepared == nullptr) {
    return kInvalid;
  }
  const auto device = own.devices.find(static_cast<int>(group->core));
  if (device == own.devices.end()) return kFailure;
  const bool is_known =
      group->size == kPair && group->own < kPair && group->own_of_all == device->second.number &&
      group->all == device->second.all && group->members[group->own] == device->second.number &&
      group->members[0] != group->members[1];
  constexpr int kAllGather = 0, kNoOperation = 0xf;
  if (!is_known || type != kBytes || collective != kAllGather || operation != kNoOperation ||
      inputs->count != 1 || outputs->count != 1) {
    return kInvalid;
  }
  auto& input = smp::played::checked(inputs->tensors[0], 0, 1);
  auto& output = smp::played::checked(outputs->tensors[0], 0, kPair * input.size);
  if (output.size != kPair * input.size || input.vnc != device->first ||
      output.vnc != device->first) {
    return kInvalid;
  }
  const smp::played::MachineLock lock(smp::played::machine());
  const int peer = smp::played::machine().core_of_device[group->members[1 - group->own]] - 1;
  if (peer < 0) return kFailure;  // it has not begun
  auto made = std::make_shared<Prepared>();
  made->given = {group, inputs, outputs};
  made->vnc = device->first;
  made->own = own.cores[static_cast<std::size_t>(device->first)];
  made->peer = peer;
  made->place = group->own;
  made->input = &input;
  made->output = &output;
  ++own.counters.prepared;
  *prepared = made.get();
  own.prepared[made.get()] = std::move(made);
  return kSuccess;
}

#if PLAYED_MINOR < 31
PLAYED_API int nrta_cc_schedule(Prepared** prepared, int queue, smp::played::Tracker* tracker,
                                std::uint64_t* sequence) {
  PLAYED_CALL();
  if (tracker == nullptr) return kInvalid;
  return schedule(prepared, queue, nullptr, tracker, sequence);
}
#else
PLAYED_API int nrta_cc_schedule(Prepared** prepared, int queue, int* result,
                                std::uint64_t* sequence) {
  PLAYED_CALL();
  if (result == nullptr) return kInvalid;
  return schedule(prepared, queue, result, nullptr, sequence);
}
#endif
