// api/session/group_calls.cpp: barriers, broadcasts and gatherings of the program.
#include <c10/util/Type.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "api/rank/exchange.h"
#include "api/rank/public_call.h"
#include "api/rank/rank.h"
#include "base/check.h"
#include "base/random.h"
#include "d2d/tensors/tensor_data.h"
#include "server/running/inside_node.h"
#include "smp/session.h"

namespace smp {
namespace {

/// Lanes of group calls in steps, apart from those of modules.
constexpr std::uint64_t kLanesOfBodies = 0x626f64696573;

/// One call that all ranks of a group make: outside of steps, or in one microbatch of a step.
class GroupCall {
 public:
  GroupCall(const char* what, Group which) : own_(Rank::current()), which_(which) {
    if (!own_.in_step()) {
      call_.emplace(what);  // in steps many fibers make calls
      return;
    }
    microbatch_ = own_.engine().current_microbatch();
    SMP_REQUIRE(microbatch_ >= 0 && of_one_stage(), "rank ", own_.topology().rank(), ": ", what,
                " was called inside a step; call it outside, on every rank of the group. In the "
                "body of a step, and in modules, ranks of one stage may call it: those of "
                "smp::Group::kDp, kRdp and kTp, all of them in the same microbatch");
    SMP_REQUIRE(!server::inside_node(), "rank ", own_.topology().rank(), ": ", what,
                ": inside a node of autograd nothing may wait; call it in forward");
  }

  const Rank& rank() const noexcept { return own_; }
  /// Whether nobody else is there: a body is tried out, or a job is planned, on this rank alone.
  bool alone() const noexcept { return own_.is_tracing() || own_.parts().plan_request.has_value(); }
  d2d::Communicator ranks() const {
    const auto all = own_.groups().of(which_);
    if (microbatch_ < 0) return all;
    return all.lane(base::mix_key(kLanesOfBodies, static_cast<std::uint64_t>(microbatch_)),
                    own_.epoch());
  }

 private:
  bool of_one_stage() const {
    const auto& topology = own_.topology();
    const auto ranks = topology.group(which_);
    return std::all_of(ranks.begin(), ranks.end(), [&](int rank) {
      return topology.coordinates(rank).pp == topology.pp_rank();
    });
  }

  Rank& own_;
  const Group which_;
  std::optional<PublicCall> call_;
  int microbatch_ = -1;
};

/// Copies the tensors that a rank gives, so that it gets new ones without history as others do.
void copy_tensors(Packet& packet) {
  for (auto& tensor : packet.tensors) {
    if (tensor.defined()) tensor = d2d::independent_copy(tensor);
  }
}

/// Puts the type before the value, since bytes do not tell a float from an int.
Packet with_type(const Packet& value, const std::string& type) {
  Writer writer;
  writer.put(type);
  auto packet = std::move(writer).take();
  packet.bytes += value.bytes;
  packet.tensors = value.tensors;
  return packet;
}

/// @throws UsageError  `giver` gave a value of another type than `wanted`.
Packet without_type(Packet packet, const std::string& wanted, const char* what, int giver) {
  const auto given = Reader(packet).get<std::string>();
  SMP_REQUIRE(given == wanted, "rank ", rank(), ": ", what, '<', wanted, ">: rank ", giver,
              " gave a ", given, "; all ranks of the group must name the same type");
  packet.bytes.erase(0, with_type({}, wanted).bytes.size());
  return packet;
}

}  // namespace

void barrier(Group which) {
  const GroupCall call("smp::barrier", which);
  if (!call.alone()) call.ranks().barrier();
}

Packet detail::broadcast(Packet own, const std::type_info& type, int root, Group which) {
  const GroupCall call("smp::broadcast", which);
  const auto ranks = call.rank().topology().group(which);
  SMP_REQUIRE(std::find(ranks.begin(), ranks.end(), root) != ranks.end(), "rank ", rank(),
              ": smp::broadcast: rank ", root, " is not in the group; name one of smp::group(...)");
  SMP_REQUIRE(
      !call.alone() || root == rank(), "smp::broadcast from rank ", root, ", but only rank ",
      rank(),
      " runs while code is tried out or the job is planned; skip it if smp::is_planning() or "
      "smp::is_tracing()");
  auto packet = std::move(own);
  if (!call.alone()) {
    const auto wanted = c10::demangle(type.name());
    if (root == rank()) packet = with_type(packet, wanted);
    packet = to_packet(call.ranks().broadcast(to_payload(std::move(packet)), GlobalRank(root)));
    packet = without_type(std::move(packet), wanted, "smp::broadcast", root);
  }
  if (root == rank()) copy_tensors(packet);
  return packet;
}

std::vector<Packet> detail::all_gather(Packet own, const std::type_info& type, Group which) {
  const GroupCall call("smp::all_gather", which);
  if (call.alone()) {
    copy_tensors(own);
    return {call.rank().topology().group(which).size(), own};
  }
  const auto ranks = call.ranks();
  const auto wanted = c10::demangle(type.name());
  const auto givers = call.rank().topology().group(which);
  auto payloads = ranks.all_gather(to_payload(with_type(own, wanted)), "smp::all_gather");
  std::vector<Packet> packets;
  for (std::size_t i = 0; i < payloads.size(); ++i) {
    packets.push_back(
        without_type(to_packet(std::move(payloads[i])), wanted, "smp::all_gather", givers[i]));
  }
  copy_tensors(packets[static_cast<std::size_t>(ranks.rank())]);
  return packets;
}

}  // namespace smp
