// smp/program/messages.h: values that one rank sends to another. (What all ranks of a group do
// together, smp::barrier() and its like, is in smp/session.h.)
#pragma once

#include <optional>
#include <typeinfo>
#include <utility>

#include "smp/codec.h"
#include "smp/detail/export.h"
#include "smp/topology.h"

namespace smp {

/// The other end of a message, as seen from this rank.
struct Peer {
  int rank = 0;                 ///< its number in `group`: as in smp::rank(), smp::pp_rank(), ...
  Group group = Group::kWorld;  ///< a group of this rank; kMp, kPp, kTp, kDp and kRdp count anew
  int tag = 0;                  ///< messages of one tag are received in the order of sending
  Peer(int number) : rank(number) {}  // NOLINT(google-explicit-constructor): a rank is a peer
  Peer(int number, Group in, int with_tag = 0) : rank(number), group(in), tag(with_tag) {}
};

namespace detail {
SMP_API void send(Packet value, const std::type_info& type, const Peer& to);
SMP_API bool send_and_wait(Packet value, const std::type_info& type, const Peer& to,
                           double seconds);
SMP_API Packet recv_from(const Peer& from, const std::type_info& type);
SMP_API std::optional<Packet> try_recv_from(const Peer& from, const std::type_info& type,
                                            double seconds);

template <class T>
Packet pack_message(const T& value) {
  static_assert(is_crossable_v<T>, "smp: values of this type cannot cross ranks; see smp/codec.h");
  Writer writer;
  writer.put(value);
  return std::move(writer).take();
}
template <class T>
T unpack_message(Packet packet) {
  static_assert(is_crossable_v<T>, "smp: values of this type cannot cross ranks; see smp/codec.h");
  Reader reader(packet);
  T value = reader.get<T>();
  reader.finish();
  return value;
}
}  // namespace detail

/// Sends `value` to another rank, which calls recv_from(). Does not wait for it: the value, its
/// tensors included, is copied and kept until it has arrived, so two ranks may send to each other
/// before either receives. Tensors travel without history.
///
///     if (smp::pp_rank() == 0) smp::send(vocabulary, {1, smp::Group::kPp});
///     if (smp::pp_rank() == 1) vocabulary = smp::recv_from<Vocabulary>({0, smp::Group::kPp});
///
/// Call it anywhere: outside of steps, in the body of a step, in modules. A message belongs to
/// where it was sent: one of outside is received outside, and one of a microbatch by code of the
/// same microbatch of the same step, so that no value depends on timing. (Replicas that send to
/// each other in steps must have run equally many: smp::step_count().) What nobody has received at
/// the end of its step is dropped. During the trial run (smp::is_tracing()), and while a job is
/// only planned (smp::is_planning()), nothing is sent. Threads: the rank's.
/// @throws UsageError     the group has no such rank, or it is this one.
/// @throws PeerLostError  the job has ended.
template <class T>
void send(const T& value, const Peer& to) {
  detail::send(detail::pack_message(value), typeid(T), to);
}

/// Sends `value` as send() does and waits until the receiver has taken it, `seconds` at most.
/// Returns whether it has; a message that was not taken in time stays sent, and may be received
/// later. Where nothing is sent it returns true. Two ranks that both wait for the other to receive
/// first wait in vain, until their deadlines.
/// @throws UsageError     as send(); `seconds` is negative or no number; inside a node of autograd,
///                        where nothing may wait.
/// @throws PeerLostError  the receiver has left, or the running step has failed.
template <class T>
[[nodiscard]] bool send_and_wait(const T& value, const Peer& to, double seconds) {
  return detail::send_and_wait(detail::pack_message(value), typeid(T), to, seconds);
}

/// Returns the next value that `from` sends to this rank with that tag; suspends until it is there.
/// Tensors are new ones without history.
/// @throws UsageError     a value of another type comes, which is dropped; `from` waits itself for
///                        this rank, in a call such as smp::barrier(); the group has no such rank,
///                        or it is this one; nobody is there to send, in a trial run or while a job
///                        is only planned; inside a node of autograd, where nothing may wait.
/// @throws PeerLostError  `from` has left, the running step has failed, or nothing came for
///                        abort_seconds (after stall_seconds a report says who waits for whom).
template <class T>
T recv_from(const Peer& from) {
  return detail::unpack_message<T>(detail::recv_from(from, typeid(T)));
}

/// Returns the next value as recv_from() does if it comes within `seconds`, else nothing: then a
/// later call gets it. 0 looks whether it is there. In a trial run, and while a job is only
/// planned, nothing comes. (In steps the answer depends on timing, so results do where code goes
/// on without the value.)
/// @throws UsageError     as recv_from(); `seconds` is negative or no number.
/// @throws PeerLostError  as recv_from().
template <class T>
[[nodiscard]] std::optional<T> try_recv_from(const Peer& from, double seconds) {
  auto packet = detail::try_recv_from(from, typeid(T), seconds);
  if (!packet) return std::nullopt;
  return detail::unpack_message<T>(std::move(*packet));
}

}  // namespace smp
