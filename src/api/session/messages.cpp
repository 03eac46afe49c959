// api/session/messages.cpp: see the header. A message is a word in a lane of its own of the two
// ranks: numbered, so that frames may overtake each other.
#include "smp/program/messages.h"

#include <c10/util/Type.h>

#include <algorithm>
#include <optional>
#include <string>

#include "api/rank/exchange.h"
#include "api/rank/public_call.h"
#include "base/check.h"
#include "base/random.h"
#include "d2d/tensors/tensor_data.h"
#include "server/running/inside_node.h"

namespace smp {
namespace {

constexpr std::uint64_t kMessageLanes =
    0x6d657373616765;                            // apart from those of modules and replicas
constexpr const char* kCall = "smp::recv_from";  // the call of both ends, as the inbox sees it

/// As messages call it: "rank 2 (number 1 of its group, tag 5)".
std::string text_of(const Peer& peer, GlobalRank rank) {
  const std::string number =
      peer.group == Group::kWorld ? "" : base::concat("number ", peer.rank, " of its group");
  const std::string tag = peer.tag == 0 ? "" : base::concat("tag ", peer.tag);
  if (number.empty() && tag.empty()) return base::concat("rank ", rank);
  return base::concat("rank ", rank, " (", number, number.empty() || tag.empty() ? "" : ", ", tag,
                      ')');
}

/// One end of a message: which lane it travels in, and what it is called.
class MessageEnd {
 public:
  MessageEnd(const char* call, const Peer& peer) : own_(Rank::current()), peer_(peer) {
    const auto& topology = own_.topology();
    const auto ranks = topology.group(peer.group);
    const auto size = static_cast<int>(ranks.size());
    SMP_REQUIRE(peer.rank >= 0 && peer.rank < size, "rank ", topology.rank(), ": ", call, ": no ",
                "rank ", peer.rank, " in its group, which has ", size,
                size == 1 ? " rank" : " ranks, numbered from 0");
    rank_ = GlobalRank(ranks[static_cast<std::size_t>(peer.rank)]);
    SMP_REQUIRE(rank_.value() != topology.rank(), "rank ", topology.rank(), ": ", call,
                ": that is this rank itself; keep the value in a variable");
    if (!own_.in_step()) return;
    step_ = own_.epoch();
    microbatch_ = own_.engine().current_microbatch();
  }

  GlobalRank rank() const noexcept { return rank_; }
  std::string text() const { return text_of(peer_, rank_); }
  /// Where it is sent and received: " in microbatch 3".
  std::string place() const {
    return microbatch_ < 0 ? "" : base::concat(" in microbatch ", microbatch_);
  }
  GlobalRank own_rank() const noexcept { return GlobalRank(own_.topology().rank()); }
  /// Whether nobody is there: code is tried out, or a job is planned, on this rank alone.
  bool alone() const noexcept { return own_.is_tracing() || own_.parts().plan_request.has_value(); }

  /// Of messages from `sender`, one of the two.
  d2d::Communicator lane(GlobalRank sender) const {
    const auto first = std::min(own_rank(), rank_), second = std::max(own_rank(), rank_);
    auto key = base::mix_key(kMessageLanes, std::uint64_t{sender == first ? 0U : 1U});
    key = base::mix_key(key, static_cast<std::uint64_t>(peer_.tag));
    key = base::mix_key(key, static_cast<std::uint64_t>(microbatch_));
    const auto ranks = own_.groups().among({first, second});
    return step_ == 0 ? ranks.lane(key) : ranks.lane(key, step_);
  }

  /// The call of the program, for those who wait for this rank outside of steps: in a step, many
  /// fibers make calls.
  void note_call(std::optional<PublicCall>& call) const {
    if (step_ == 0) call.emplace(kCall);
  }

 private:
  Rank& own_;
  const Peer peer_;
  GlobalRank rank_;
  std::uint64_t step_ = 0;  // 0: outside of steps
  int microbatch_ = -1;
};

}  // namespace

void detail::send(Packet value, const std::type_info& type, const Peer& to) {
  const MessageEnd end("smp::send", to);
  if (end.alone()) return;
  std::optional<PublicCall> call;
  end.note_call(call);
  for (auto& tensor : value.tensors) {
    if (tensor.defined()) tensor = d2d::independent_copy(tensor);
  }
  Writer whole;
  whole.put(c10::demangle(type.name()));
  auto message = std::move(whole).take();
  message.bytes += value.bytes;
  message.tensors = std::move(value.tensors);
  end.lane(end.own_rank()).tell(0, to_payload(std::move(message)), {end.rank()}, "smp::send");
}

Packet detail::recv_from(const Peer& from, const std::type_info& type) {
  const MessageEnd end(kCall, from);
  const auto wanted = c10::demangle(type.name());
  SMP_REQUIRE(!end.alone(), "rank ", end.own_rank(), ": ", kCall, " from ", end.text(), end.place(),
              ": this rank runs alone, in advance of the others or to plan a job; ask "
              "smp::is_tracing() and smp::is_planning(), and take some value of type ",
              wanted);
  SMP_REQUIRE(!server::inside_node(), "rank ", end.own_rank(), ": ", kCall, " from ", end.text(),
              end.place(), ": inside a node of autograd nothing may wait; receive it in forward");
  std::optional<PublicCall> call;
  end.note_call(call);
  const auto what = base::concat(kCall, '<', wanted, "> from ", end.text(), end.place());
  auto packet = to_packet(end.lane(end.rank()).hear(0, end.rank(), what.c_str()));
  Reader reader(packet);
  const auto sent = reader.get<std::string>();
  SMP_REQUIRE(sent == wanted, "rank ", end.own_rank(), ": ", what, ": it sent a ", sent,
              "; both ends must name the same type");
  Writer name;
  name.put(sent);
  packet.bytes.erase(0, std::move(name).take().bytes.size());
  return packet;
}

}  // namespace smp
