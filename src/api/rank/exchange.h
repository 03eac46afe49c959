// api/rank/exchange.h: values through a communicator, outside of steps.
#pragma once

#include <utility>
#include <vector>

#include "d2d/collectives/communicator.h"
#include "smp/codec.h"

namespace smp {

inline d2d::Payload to_payload(Packet&& packet) {
  return {std::move(packet.bytes), std::move(packet.tensors)};
}
inline Packet to_packet(d2d::Payload&& payload) {
  return {std::move(payload.bytes), std::move(payload.tensors)};
}

/// Returns `own` of every member, in order of members, on every member. @param what  for messages
template <class T>
std::vector<T> gather_values(const d2d::Communicator& ranks, const T& own, const char* what) {
  Writer writer;
  writer.put(own);
  std::vector<T> all;
  for (auto& payload : ranks.all_gather(to_payload(std::move(writer).take()), what)) {
    auto packet = to_packet(std::move(payload));
    all.push_back(Reader(packet).get<T>());
  }
  return all;
}

/// Returns the first member's `own` on every member; nobody else's is looked at.
template <class T>
T value_of_first(const d2d::Communicator& ranks, const T& own) {
  Writer writer;
  if (ranks.rank() == 0) writer.put(own);
  auto packet =
      to_packet(ranks.broadcast(to_payload(std::move(writer).take()), ranks.members()[0]));
  return Reader(packet).get<T>();
}

}  // namespace smp
