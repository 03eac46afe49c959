// The played libnrt: copies that are put on queues and done later, in the interface of the release.
#include <cstring>

#include "d2d/wires/neuron/played/process.h"

namespace smp::played {

struct TrackedError {
  std::uint64_t sequence, code;
};
/// Of the release of SDK 2.28: where the failures of requests are found.
struct Tracker {
  std::vector<TrackedError> errors;
};

namespace {

#if PLAYED_MINOR < 31
// Execution units of SDK 2.28.
constexpr std::uint64_t kRead = 0, kWrite = 1, kTensorOp = 2;
constexpr int kQueues = 1;
#else
// From SDK 2.29 on both are tensor operations.
constexpr std::uint64_t kRead = 0, kWrite = 0, kTensorOp = 0;
constexpr int kQueues = 2;
#endif

std::uint64_t queue_id(int vnc, std::uint64_t unit, int queue) {
  return static_cast<std::uint64_t>(vnc) << 8 | unit << 4 | static_cast<std::uint64_t>(queue);
}

void tell(const Copy& copy, int status) {
  if (copy.result != nullptr) *copy.result = status;
  if (copy.tracker != nullptr && status != kSuccess) {
    copy.tracker->errors.push_back({copy.sequence, static_cast<std::uint64_t>(status)});
  }
}

void move_bytes(const Copy& copy) {
  auto* const inside = bytes_of(checked(copy.tensor, copy.offset, copy.size), copy.offset);
  if (copy.to != nullptr) {
    std::memmove(bytes_of(checked(copy.to, copy.to_offset, copy.size), copy.to_offset), inside,
                 copy.size);
    return;
  }
  std::memcpy(copy.to_host ? copy.host : inside, copy.to_host ? inside : copy.host, copy.size);
}

/// Ends the oldest request of a queue. Returns false if it goes on: a collective whose other side
/// has not entered it.
bool finish_front(Queue& queue) {
  auto& own = process();
  const Copy copy = queue.copies.front();
  int status = kSuccess;
  if (copy.collective != nullptr && !gather(*copy.collective, status)) return false;
  queue.copies.pop_front();
  queue.done = copy.sequence;
  --own.counters.copies;
  for (auto* const tensor : {copy.tensor, copy.to}) {
    if (tensor != nullptr) --tensor->pending;
  }
  if (own.counters.results++ == own.knobs.fail_result) {
    own.terminal = own.knobs.fail_status == 101;
    status = own.knobs.fail_status;
  } else if (copy.collective == nullptr) {
    move_bytes(copy);
  }
  if (copy.collective != nullptr) own.prepared.erase(copy.collective);  // the runtime frees it
  tell(copy, status);
  return true;
}

}  // namespace

int put(const Copy& wanted, int vnc, std::uint64_t unit, int queue, std::uint64_t* sequence) {
  auto& own = process();
  if (queue < 0 || queue >= kQueues || sequence == nullptr) return kInvalid;
  const auto id = queue_id(vnc, unit, queue);
  auto& place = own.queues[id];
  if (static_cast<int>(place.copies.size()) >= own.knobs.queue_depth) {
    ++own.counters.queue_full;
    return kQueueFull;
  }
  Copy copy = wanted;
  copy.sequence = id << 48 | ++place.last;
  copy.looks = random_looks();
  for (auto* const tensor : {copy.tensor, copy.to}) {
    if (tensor != nullptr) ++tensor->pending;
  }
  ++own.counters.copies;
  place.copies.push_back(copy);
  *sequence = copy.sequence;
  return kSuccess;
}

}  // namespace smp::played

using smp::played::kInvalid;
using smp::played::kSuccess;

#if PLAYED_MINOR < 31

using smp::played::Tracker;

PLAYED_API int nrta_error_tracker_create(std::uint32_t core, Tracker** tracker) {
  PLAYED_CALL();
  if (core >= own.cores.size()) return kInvalid;
  *tracker = new Tracker;
  ++own.counters.trackers;
  return kSuccess;
}

PLAYED_API void nrta_error_tracker_destroy(Tracker* tracker) {
  delete tracker;
  --smp::played::process().counters.trackers;
}

PLAYED_API int nrta_error_tracker_get_list(Tracker* tracker, const smp::played::TrackedError** list,
                                           std::size_t* count) {
  PLAYED_CALL();
  *list = tracker->errors.data();
  *count = tracker->errors.size();
  return kSuccess;
}

PLAYED_API int nrta_tensor_read(void* to, nrt_tensor* tensor, std::uint64_t offset,
                                std::uint64_t size, int queue, Tracker* tracker,
                                std::uint64_t* sequence) {
  PLAYED_CALL();
  if (tracker == nullptr) return kInvalid;
  smp::played::checked(tensor, offset, size);
  return smp::played::put(
      {0, tensor, static_cast<std::byte*>(to), offset, size, true, 0, nullptr, tracker},
      tensor->vnc, smp::played::kRead, queue, sequence);
}

PLAYED_API int nrta_tensor_write(nrt_tensor* tensor, const void* from, std::uint64_t offset,
                                 std::uint64_t size, int queue, Tracker* tracker,
                                 std::uint64_t* sequence) {
  PLAYED_CALL();
  if (tracker == nullptr) return kInvalid;
  smp::played::checked(tensor, offset, size);
  auto* const host = static_cast<std::byte*>(const_cast<void*>(from));
  return smp::played::put({0, tensor, host, offset, size, false, 0, nullptr, tracker}, tensor->vnc,
                          smp::played::kWrite, queue, sequence);
}

PLAYED_API int nrta_tensor_copy(nrt_tensor* from, std::uint64_t from_offset, nrt_tensor* to,
                                std::uint64_t to_offset, std::uint64_t size, int queue,
                                Tracker* tracker, std::uint64_t* sequence) {
  PLAYED_CALL();
  smp::played::checked(from, from_offset, size);
  smp::played::checked(to, to_offset, size);
  if (tracker == nullptr || from->vnc != to->vnc) return kInvalid;  // never to another core
  return smp::played::put(
      {0, from, nullptr, from_offset, size, false, 0, nullptr, tracker, to, to_offset}, from->vnc,
      smp::played::kTensorOp, queue, sequence);
}

#else

PLAYED_API int nrta_tensor_read(void* to, nrt_tensor* tensor, std::uint64_t offset,
                                std::uint64_t size, std::uint32_t core, int queue, int* result,
                                std::uint64_t* sequence) {
  PLAYED_CALL();
  if (core >= own.cores.size() || result == nullptr) return kInvalid;
  smp::played::checked(tensor, offset, size);
  return smp::played::put(
      {0, tensor, static_cast<std::byte*>(to), offset, size, true, 0, result, nullptr}, tensor->vnc,
      smp::played::kRead, queue, sequence);
}

PLAYED_API int nrta_tensor_write(nrt_tensor* tensor, const void* from, std::uint64_t offset,
                                 std::uint64_t size, std::uint32_t core, int queue, int* result,
                                 std::uint64_t* sequence) {
  PLAYED_CALL();
  if (core >= own.cores.size() || result == nullptr) return kInvalid;
  smp::played::checked(tensor, offset, size);
  auto* const host = static_cast<std::byte*>(const_cast<void*>(from));
  return smp::played::put({0, tensor, host, offset, size, false, 0, result, nullptr}, tensor->vnc,
                          smp::played::kWrite, queue, sequence);
}

PLAYED_API int nrta_tensor_copy(nrt_tensor* from, std::uint64_t from_offset, nrt_tensor* to,
                                std::uint64_t to_offset, std::uint64_t size, std::uint32_t core,
                                int queue, int* result, std::uint64_t* sequence) {
  PLAYED_CALL();
  smp::played::checked(from, from_offset, size);
  smp::played::checked(to, to_offset, size);
  if (core >= own.cores.size() || result == nullptr) return kInvalid;
  if (from->vnc != to->vnc) return kInvalid;  // never to another core
  return smp::played::put(
      {0, from, nullptr, from_offset, size, false, 0, result, nullptr, to, to_offset}, from->vnc,
      smp::played::kTensorOp, queue, sequence);
}

#endif

/// Every look brings the request at the head of the queue closer to its end.
PLAYED_API int nrta_is_completed(std::uint64_t sequence, bool* done) {
  PLAYED_CALL();
  const auto found = own.queues.find(sequence >> 48);
  constexpr std::uint64_t kCounter = (std::uint64_t{1} << 48) - 1;
  if (found == own.queues.end() || (sequence & kCounter) > found->second.last) return kInvalid;
  auto& queue = found->second;
  while (queue.done < sequence && queue.copies.front().looks <= 0) {
    if (!smp::played::finish_front(queue)) break;
  }
  if (queue.done < sequence) --queue.copies.front().looks;
  *done = queue.done >= sequence;
  return kSuccess;
}
