// api/session/messages.cpp: see the header. A message is a word in a lane of its own of the two
// ranks: numbered, so that frames may overtake each other. So is the receipt of one whose sender
// waits for it; what comes for one that waits no longer is dropped.
#include "smp/program/messages.h"

#include <c10/util/Type.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "api/rank/exchange.h"
#include "api/rank/public_call.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/random.h"
#include "d2d/collectives/collective.h"
#include "d2d/tensors/tensor_data.h"
#include "fiber/scheduler.h"
#include "server/running/inside_node.h"

namespace smp {
namespace {

constexpr std::uint64_t kMessageLanes =
    0x6d657373616765;  // apart from those of modules and replicas
constexpr std::uint64_t kReceiptLanes = 0x72656365697074;
constexpr const char* kCall = "smp::recv_from";  // the call of both ends, as the inbox sees it
constexpr base::Nanoseconds kBetweenLooks = base::kMillisecond / 5;

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

  /// Of messages from `sender`, one of the two, or of receipts that it gives.
  d2d::Communicator lane(GlobalRank sender, std::uint64_t kind = kMessageLanes) const {
    const auto first = std::min(own_rank(), rank_), second = std::max(own_rank(), rank_);
    auto key = base::mix_key(kind, std::uint64_t{sender == first ? 0U : 1U});
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

/// What stands before the value.
struct Heading {
  std::string type;
  std::uint64_t receipt = 0;  ///< 0: none is wanted; else 1 + its number
};

void send_word(const MessageEnd& end, const Heading& heading, Packet value) {
  for (auto& tensor : value.tensors) {
    if (tensor.defined()) tensor = d2d::independent_copy(tensor);
  }
  auto message = detail::pack_message(heading);
  message.bytes += value.bytes;
  message.tensors = std::move(value.tensors);
  end.lane(end.own_rank()).tell(0, to_payload(std::move(message)), {end.rank()}, "smp::send");
}

/// Returns the value of the next message, after what stands before it.
Packet hear_word(const MessageEnd& end, const std::string& wanted, const std::string& what) {
  auto packet = to_packet(end.lane(end.rank()).hear(0, end.rank(), what.c_str()));
  const auto heading = Reader(packet).get<Heading>();
  if (heading.receipt > 0) {
    end.lane(end.own_rank(), kReceiptLanes)
        .tell(heading.receipt - 1, {}, {end.rank()}, "smp::send_and_wait");
  }
  SMP_REQUIRE(heading.type == wanted, "rank ", end.own_rank(), ": ", what, ": it sent a ",
              heading.type, "; both ends must name the same type");
  packet.bytes.erase(0, detail::pack_message(heading).bytes.size());
  return packet;
}

std::string text_of_receiving(const MessageEnd& end, const std::string& type) {
  return base::concat(kCall, '<', type, "> from ", end.text(), end.place());
}

/// Refuses to wait where nothing may.
void require_that_it_may_wait(const MessageEnd& end, const std::string& what) {
  SMP_REQUIRE(!server::inside_node(), "rank ", end.own_rank(), ": ", what,
              ": inside a node of autograd nothing may wait; do it in forward");
}

void require_duration(const MessageEnd& end, const std::string& what, double seconds) {
  SMP_REQUIRE(seconds >= 0, "rank ", end.own_rank(), ": ", what, " within ", seconds,
              " seconds: give 0 or more");
}

/// Suspends until `is_decided()`, `seconds` at most; returns whether it is.
template <class IsDecided>
bool comes_within(double seconds, GlobalRank teller, const std::string& what,
                  const IsDecided& is_decided) {
  constexpr double kLongest = 1e9;  // seconds, so that nanoseconds are a number
  auto& scheduler = fiber::Scheduler::instance();
  const fiber::WaitReason reason{what.c_str(), "", teller.value(), -1};
  const auto end = scheduler.clock().now() +
                   static_cast<base::Nanoseconds>(std::min(seconds, kLongest) * base::kSecond);
  if (!scheduler.simulated()) scheduler.poll_all();  // what lies at the door
  while (!is_decided()) {
    const auto left = end - scheduler.clock().now();
    if (left <= 0) return false;
    scheduler.sleep_for(std::min(left, kBetweenLooks), reason);
  }
  return true;
}

}  // namespace

void detail::send(Packet value, const std::type_info& type, const Peer& to) {
  const MessageEnd end("smp::send", to);
  if (end.alone()) return;
  std::optional<PublicCall> call;
  end.note_call(call);
  send_word(end, {c10::demangle(type.name())}, std::move(value));
}

bool detail::send_and_wait(Packet value, const std::type_info& type, const Peer& to,
                           double seconds) {
  const MessageEnd end("smp::send_and_wait", to);
  const auto what = base::concat("smp::send_and_wait to ", end.text(), end.place());
  require_duration(end, what, seconds);
  if (end.alone()) return true;
  require_that_it_may_wait(end, what);
  std::optional<PublicCall> call;
  end.note_call(call);
  const auto receipts = end.lane(end.rank(), kReceiptLanes);
  d2d::Collective receipt(receipts, receipts.next_number(),
                          {d2d::CollectiveKind::kBroadcast, end.rank().value(), -1, {}},
                          what.c_str());  // takes its number, whoever sends meanwhile
  send_word(end, {c10::demangle(type.name()), receipt.id().number + 1}, std::move(value));
  constexpr auto kWord = d2d::CollectivePhase::kExchange;
  const auto decided = [&] { return receipt.is_decided(kWord, end.rank()); };
  if (!comes_within(seconds, end.rank(), what, decided)) return false;
  receipt.take(kWord, end.rank());
  return true;
}

Packet detail::recv_from(const Peer& from, const std::type_info& type) {
  const MessageEnd end(kCall, from);
  const auto wanted = c10::demangle(type.name());
  const auto what = text_of_receiving(end, wanted);
  SMP_REQUIRE(!end.alone(), "rank ", end.own_rank(), ": ", kCall, " from ", end.text(), end.place(),
              ": this rank runs alone, in advance of the others or to plan a job; ask "
              "smp::is_tracing() and smp::is_planning(), and take some value of type ",
              wanted);
  require_that_it_may_wait(end, what);
  std::optional<PublicCall> call;
  end.note_call(call);
  return hear_word(end, wanted, what);
}

std::optional<Packet> detail::try_recv_from(const Peer& from, const std::type_info& type,
                                            double seconds) {
  const MessageEnd end(kCall, from);
  const auto wanted = c10::demangle(type.name());
  const auto what = text_of_receiving(end, wanted);
  require_duration(end, what, seconds);
  if (end.alone()) return std::nullopt;
  require_that_it_may_wait(end, what);
  std::optional<PublicCall> call;
  end.note_call(call);
  const auto lane = end.lane(end.rank());
  const auto decided = [&] { return lane.would_hear(0, end.rank()); };
  if (!comes_within(seconds, end.rank(), what, decided)) return std::nullopt;
  return hear_word(end, wanted, what);
}

}  // namespace smp
