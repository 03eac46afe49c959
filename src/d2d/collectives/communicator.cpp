// d2d/collectives/communicator.cpp: everyone sends to everyone: groups are small, and nobody waits
// for a third.
#include "d2d/collectives/communicator.h"

#include <ATen/NativeFunctions.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "d2d/collectives/collective.h"
#include "d2d/collectives/collective_header.h"
#include "d2d/collectives/device_agreement.h"
#include "d2d/collectives/device_group.h"
#include "d2d/collectives/sum_in_place.h"
#include "d2d/tensors/tensor_data.h"

namespace smp::d2d {
namespace {

std::uint64_t hash_of(const Members& members) {
  std::uint64_t hash = 0xcbf29ce484222325ull;
  for (const GlobalRank rank : members) hash = (hash ^ rank.index()) * 0x100000001b3ull;
  return hash;
}

CollectiveCall call_on(CollectiveKind kind, c10::IntArrayRef sizes, c10::ScalarType dtype,
                       std::int32_t root = -1) {
  return {kind, root, static_cast<std::int32_t>(dtype),
          std::string(reinterpret_cast<const char*>(sizes.data()), sizes.size() * sizeof sizes[0])};
}
CollectiveCall call_on(CollectiveKind kind, const at::Tensor& tensor) {
  return call_on(kind, tensor.sizes(), tensor.scalar_type());
}

// ---- tensors ----

bool can_be_summed(c10::ScalarType dtype) {
  switch (dtype) {
    case c10::ScalarType::Byte:
    case c10::ScalarType::Char:
    case c10::ScalarType::Short:
    case c10::ScalarType::Int:
    case c10::ScalarType::Long:
    case c10::ScalarType::Half:
    case c10::ScalarType::BFloat16:
    case c10::ScalarType::Float:
    case c10::ScalarType::Double:
    case c10::ScalarType::ComplexFloat:
    case c10::ScalarType::ComplexDouble:
      return true;
    default:
      return false;
  }
}

void check_tensor(const at::Tensor& tensor, const char* what, GlobalRank rank) {
  SMP_REQUIRE(tensor.defined(), "rank ", rank, ": ", what, " of an undefined tensor.");
  check_sendable(tensor, 0);
}

void check_summable(const at::Tensor& tensor, const char* what, GlobalRank rank) {
  check_tensor(tensor, what, rank);
  SMP_REQUIRE_AS(UnsupportedError, can_be_summed(tensor.scalar_type()), "rank ", rank, ": ", what,
                 " of ", tensor.sizes(), ": elements of type ", tensor.scalar_type(),
                 " cannot be summed; convert the tensor first.");
}

// Cuts are views that share the version counter of `tensor`, unless it has to be copied.
class Cut {
 public:
  /// Cuts the tensor into equal parts along the first dimension, which is a multiple of their
  /// number.
  Cut(const at::Tensor& tensor, int parts)
      : whole_(contiguous_data(detached(tensor))), rows_(whole_.size(0) / parts) {}
  at::Tensor part(int position) const {
    const at::NoGradGuard no_history;
    return whole_.narrow(0, position * rows_, rows_);
  }

 private:
  const at::Tensor whole_;
  const std::int64_t rows_;  // of a part
};

void add_to(at::Tensor& sum, const at::Tensor& term) {
  const c10::InferenceMode normal(false);
  const at::AutoDispatchBelowADInplaceOrView no_history;
  sum.add_(term);
}

at::Tensor converted(const at::Tensor& tensor, at::ScalarType type) {
  const c10::InferenceMode normal(false);
  const at::AutoDispatchBelowADInplaceOrView no_history;
  return tensor.to(type);
}

// Writes tensors one behind the other.
class Joiner {
 public:
  explicit Joiner(const at::Tensor& joined) : joined_(joined) {}
  void put(const at::Tensor& part) {
    const auto elements = part.numel();
    if (elements > 0 && joined_.device().is_cpu()) {
      std::memcpy(static_cast<std::byte*>(joined_.mutable_data_ptr()) + next_ * part.itemsize(),
                  part.const_data_ptr(), part.nbytes());
    } else if (elements > 0) {
      const c10::InferenceMode normal(false);
      const at::AutoDispatchBelowADInplaceOrView no_history;
      joined_.view({-1}).narrow(0, next_, elements).copy_(part.view({-1}));
    }
    next_ += elements;
  }

 private:
  const at::Tensor& joined_;
  std::int64_t next_ = 0;  // element
};

// `own` and what the others send, of the same size, in order of members.
void join_exchanged(Collective& collective, const Members& members, GlobalRank rank,
                    const at::Tensor& own, const at::Tensor& joined) {
  Joiner joiner(joined);
  for (const GlobalRank member : members) {
    joiner.put(member == rank ? own
                              : collective.take_tensor(CollectivePhase::kExchange, member, own));
  }
}

// The sum of `own` and what the others send, in order of members; of 16 bits it is rounded once.
at::Tensor sum_of_parts(Collective& collective, const Members& members, GlobalRank rank,
                        const at::Tensor& own) {
  at::Tensor sum;
  for (const GlobalRank member : members) {
    const at::Tensor term =
        member == rank ? own : collective.take_tensor(CollectivePhase::kExchange, member, own);
    if (sum.defined()) {
      add_to(sum, term);
    } else if (c10::isReducedFloatingType(own.scalar_type())) {
      sum = converted(term, at::kFloat);
    } else {
      sum = member == rank ? independent_copy(own) : term;
    }
  }
  return converted(sum, own.scalar_type());
}

}  // namespace

// ---- payloads ----

int Communicator::rank() const noexcept { return members_->position(owner_->rank()); }

Communicator Communicator::lane(std::uint64_t number) const {
  return {*owner_, members_, {lane_.group, number, 0}};
}

Communicator Communicator::lane(std::uint64_t number, std::uint64_t epoch) const {
  SMP_ASSERT(epoch > 0, "lanes of epoch 0 are for good");
  return {*owner_, members_, {lane_.group, number, epoch}};
}

void Communicator::leave_out(std::uint64_t number) const {
  owner_->inbox_.leave_out(lane_, number);
}

Communicator Communicator::named(const char* what) const {
  auto named = *this;
  named.name_ = what;
  return named;
}

Communicator Communicator::among(Members members) const {
  return owner_->group(std::move(members));
}

template <class Action>
void Communicator::for_each_other(Action&& action) const {
  for (int position = 0; position < size(); ++position) {
    if (position != rank()) action((*members_)[position], position);
  }
}

std::vector<Payload> Communicator::all_gather(Payload own, const char* what) const {
  std::string detail(what, strnlen(what, CollectiveHeader::kLongestDetail));
  Collective collective(*this, {CollectiveKind::kAllGather, -1, -1, std::move(detail)}, what);
  for_each_other([&](GlobalRank peer, int) { collective.send(peer, own); });
  std::vector<Payload> all(static_cast<std::size_t>(size()));
  for_each_other([&](GlobalRank peer, int position) {
    all[static_cast<std::size_t>(position)] = collective.take(CollectivePhase::kExchange, peer);
  });
  collective.await_departure();
  all[static_cast<std::size_t>(rank())] = std::move(own);
  return all;
}

Payload Communicator::broadcast(Payload own, GlobalRank root) const {
  SMP_REQUIRE(members_->contain(root), "rank ", owner_->rank(), ": a broadcast from rank ", root,
              ", which is not one of ", *members_, '.');
  Collective collective(*this, {CollectiveKind::kBroadcast, root.value(), -1, {}}, "a broadcast");
  if (owner_->rank() != root) return collective.take(CollectivePhase::kExchange, root);
  for_each_other([&](GlobalRank peer, int) { collective.send(peer, own); });
  collective.await_departure();
  return own;
}

const char* Communicator::call_of_program() const noexcept {
  return lane_.epoch == 0 && owner_->call_ != nullptr ? owner_->call_ : "";
}

CollectiveCall Communicator::as_part_of_program(CollectiveCall call) const {
  if (call.dtype >= 0 || *call_of_program() == '\0') return call;
  call.detail = purpose_of(call.detail.c_str(), call_of_program());
  call.detail.resize(std::min(call.detail.size(), CollectiveHeader::kLongestDetail));
  return call;
}

void Communicator::tell(std::uint64_t number, const Payload& word,
                        const std::vector<GlobalRank>& hearers, const char* what) const {
  Collective collective(*this, std::max(number, owner_->inbox_.next(lane_)),
                        {CollectiveKind::kBroadcast, owner_->rank().value(), -1, {}}, what);
  for (const GlobalRank peer : hearers) collective.send(peer, word);
}

Payload Communicator::hear(std::uint64_t number, GlobalRank teller, const char* what) const {
  Collective collective(*this, std::max(number, owner_->inbox_.next(lane_)),
                        {CollectiveKind::kBroadcast, teller.value(), -1, {}}, what);
  return collective.take(CollectivePhase::kExchange, teller);
}

bool Communicator::would_hear(std::uint64_t number, GlobalRank teller) const {
  return owner_->inbox_.is_decided({lane_, std::max(number, next_number())},
                                   CollectivePhase::kExchange, teller);
}

std::uint64_t Communicator::next_number() const { return owner_->inbox_.next(lane_); }

void Communicator::barrier() const {
  Collective collective(*this, {CollectiveKind::kBarrier, -1, -1, {}}, "a barrier");
  for_each_other([&](GlobalRank peer, int) { collective.send(peer, {}); });
  for_each_other([&](GlobalRank peer, int) { collective.take(CollectivePhase::kExchange, peer); });
}

// ---- tensors ----

DeviceGroup* Communicator::devices_for(CollectiveKind kind,
                                       const at::Tensor& tensor) const noexcept {
  const auto found = owner_->devices_.find(lane_.group);
  if (found == owner_->devices_.end() || !found->second->takes(kind, tensor)) return nullptr;
  return found->second.get();
}

at::Tensor Communicator::run_on(DeviceGroup& devices, CollectiveKind kind, const at::Tensor& tensor,
                                at::IntArrayRef result_sizes, const char* what) const {
  const auto call = call_on(kind, tensor.sizes(), tensor.scalar_type(), CollectiveCall::kOnDevices);
  return devices.run(*this, call, what, tensor, result_sizes);
}

at::Tensor Communicator::all_reduce(const at::Tensor& tensor) const {
  const char* const what = name_or("an all_reduce");
  check_summable(tensor, what, owner_->rank());
  if (auto* const devices = devices_for(CollectiveKind::kAllReduce, tensor)) {
    return run_on(*devices, CollectiveKind::kAllReduce, tensor, tensor.sizes(), what);
  }
  if (tensor.nbytes() <= kInlineBytes) return sum_everywhere(tensor, what);
  auto result = independent_copy(tensor);
  SumInPlace sum(named(what), {result}, 1);
  sum.add();
  sum.finish();
  return result;
}

at::Tensor Communicator::sum_everywhere(const at::Tensor& tensor, const char* what) const {
  Collective collective(*this, call_on(CollectiveKind::kAllReduce, tensor), what);
  const at::Tensor own = contiguous_data(detached(tensor));
  for_each_other([&](GlobalRank peer, int) { collective.send_part(peer, own); });
  auto sum = sum_of_parts(collective, *members_, owner_->rank(), own);
  collective.await_departure();  // the caller may write to it next; one of a device is no copy
  return sum;
}

at::Tensor Communicator::reduce_scatter(const at::Tensor& tensor) const {
  const char* const what = name_or("a reduce_scatter");
  check_summable(tensor, what, owner_->rank());
  SMP_REQUIRE(tensor.dim() > 0 && tensor.size(0) % size() == 0, "rank ", owner_->rank(), ": ", what,
              " of ", tensor.sizes(), " among ", size(),
              " ranks: the first dimension must be a multiple of their number.");
  if (auto* const devices = devices_for(CollectiveKind::kReduceScatter, tensor)) {
    std::vector<std::int64_t> part = tensor.sizes().vec();
    part[0] /= size();
    return run_on(*devices, CollectiveKind::kReduceScatter, tensor, part, what);
  }
  Collective collective(*this, call_on(CollectiveKind::kReduceScatter, tensor), what);
  const Cut cut(tensor, size());
  for_each_other(
      [&](GlobalRank peer, int position) { collective.send_part(peer, cut.part(position)); });
  at::Tensor sum = sum_of_parts(collective, *members_, owner_->rank(), cut.part(rank()));
  collective.await_departure();
  return sum;
}

at::Tensor Communicator::all_gather(const at::Tensor& tensor) const {
  const char* const what = name_or("an all_gather");
  check_tensor(tensor, what, owner_->rank());
  SMP_REQUIRE(tensor.dim() > 0, "rank ", owner_->rank(), ": ", what,
              " of a tensor without dimensions: there is no first one to join along.");
  std::vector<std::int64_t> sizes = tensor.sizes().vec();
  sizes[0] *= size();
  if (auto* const devices = devices_for(CollectiveKind::kTensorAllGather, tensor)) {
    return run_on(*devices, CollectiveKind::kTensorAllGather, tensor, sizes, what);
  }
  Collective collective(*this, call_on(CollectiveKind::kTensorAllGather, tensor), what);
  const at::Tensor own = contiguous_data(detached(tensor));
  for_each_other([&](GlobalRank peer, int) { collective.send_part(peer, own); });
  at::Tensor result = new_tensor(sizes, tensor.scalar_type(), tensor.device().type());
  join_exchanged(collective, *members_, owner_->rank(), own, result);
  collective.await_departure();
  return result;
}

at::Tensor Communicator::all_to_all(const at::Tensor& tensor) const {
  const char* const what = name_or("an all_to_all");
  check_tensor(tensor, what, owner_->rank());
  SMP_REQUIRE(tensor.dim() > 0 && tensor.size(0) % size() == 0, "rank ", owner_->rank(), ": ", what,
              " of ", tensor.sizes(), " among ", size(),
              " ranks: the first dimension must be a multiple of their number.");
  if (auto* const devices = devices_for(CollectiveKind::kAllToAll, tensor)) {
    return run_on(*devices, CollectiveKind::kAllToAll, tensor, tensor.sizes(), what);
  }
  Collective collective(*this, call_on(CollectiveKind::kAllToAll, tensor), what);
  const Cut cut(tensor, size());
  for_each_other(
      [&](GlobalRank peer, int position) { collective.send_part(peer, cut.part(position)); });
  const at::Tensor own = cut.part(rank());
  at::Tensor result = new_tensor(tensor.sizes(), tensor.scalar_type(), tensor.device().type());
  join_exchanged(collective, *members_, owner_->rank(), own, result);
  collective.await_departure();
  return result;
}

at::Tensor Communicator::broadcast_tensor(const at::Tensor& own, at::IntArrayRef sizes,
                                          c10::ScalarType dtype, GlobalRank root) const {
  constexpr const char* kWhat = "a broadcast of a tensor";
  SMP_REQUIRE(members_->contain(root), "rank ", owner_->rank(), ": ", kWhat, " from rank ", root,
              ", which is not one of ", *members_, '.');
  const bool is_root = owner_->rank() == root;
  if (is_root) {
    check_tensor(own, kWhat, owner_->rank());
    SMP_REQUIRE(own.sizes() == sizes && own.scalar_type() == dtype, "rank ", owner_->rank(), ": ",
                kWhat, " of ", dtype, ' ', sizes, ": got ", own.scalar_type(), ' ', own.sizes());
  }
  Collective collective(
      *this, call_on(CollectiveKind::kTensorBroadcast, sizes, dtype, root.value()), kWhat);
  if (!is_root) return collective.take_tensor(CollectivePhase::kExchange, root, sizes, dtype);
  const at::Tensor data = contiguous_data(detached(own));
  for_each_other([&](GlobalRank peer, int) { collective.send_part(peer, data); });
  collective.await_departure();
  return own;
}

// ---- all communicators of a channel ----

Communicators::Communicators(Channel& channel)
    : channel_(channel), inbox_(channel.rank()), sent_(static_cast<std::size_t>(channel.size())) {
  channel_.set_receiver(Port::kCollectives, [this](GlobalRank source, ArrivedFrame&& frame) {
    receive(source, std::move(frame));
  });
}

Communicators::~Communicators() {
  devices_.clear();
  channel_.set_receiver(Port::kCollectives, [](GlobalRank, ArrivedFrame&&) {});
}

Communicator Communicators::group(Members members) {
  for (const GlobalRank member : members) {
    SMP_REQUIRE(channel_.members().contain(member), "rank ", rank(), ": a group of the ranks ",
                members, ": rank ", member, " is not in this channel, which connects ",
                channel_.members(), '.');
  }
  SMP_REQUIRE(members.contain(rank()), "rank ", rank(), ": a group of the ranks ", members,
              ": this rank is not one of them; only members take part.");
  const CollectiveLane lane{hash_of(members), 0, 0};
  return {*this, std::make_shared<const Members>(std::move(members)), lane};
}

std::string Communicators::use_devices(const Communicator& group, const MakeDeviceCollectives& make,
                                       c10::Device device, bool required) {
  auto connected = connect_devices(group, make, device);
  SMP_REQUIRE_AS(UnsupportedError, !required || connected.devices, "the devices of ",
                 group.members().text(),
                 " cannot do its collectives, as they are told to: ", connected.problem);
  if (connected.devices) {
    devices_[group.lane_.group] = std::make_unique<DeviceGroup>(
        group, std::move(connected.devices), [this](const std::string& why) { channel_.end(why); });
  }
  return connected.problem;
}

void Communicators::abort(const std::string& why) {
  inbox_.abort(why);
  for (const auto& [group, devices] : devices_) devices->abort(why);
}

std::uint64_t& Communicators::sent(GlobalRank peer) {
  return sent_[static_cast<std::size_t>(channel_.members().position(peer))];
}

void Communicators::send(GlobalRank peer, std::span<const std::byte> header, std::string_view bytes,
                         c10::ArrayRef<at::Tensor> tensors, std::shared_ptr<Departure> departure) {
  channel_.send(peer, Port::kCollectives, header, bytes, tensors, std::move(departure));
  ++sent(peer);
}

void Communicators::receive(GlobalRank source, ArrivedFrame&& frame) {
  const CollectiveHeader header = CollectiveHeader::read(frame.header);
  std::string bytes(reinterpret_cast<const char*>(frame.body.data()), frame.body.size());
  CollectiveCall call = header.call();
  if (call.kind == CollectiveKind::kLeaving) {
    inbox_.peer_left(source, header.id().number, bytes);
    for (const auto& [group, devices] : devices_) {
      if (devices->has(source)) devices->member_left(base::concat("rank ", source, ' ', bytes));
    }
    return;
  }
  if (call.kind == CollectiveKind::kEpochFailed) {
    return inbox_.peer_failed_epoch(source, header.id().lane.epoch, bytes);
  }
  if (call.root == CollectiveCall::kOnDevices && header.phase() == CollectivePhase::kResult) {
    const auto devices = devices_.find(header.id().lane.group);
    if (devices != devices_.end()) devices->second->take_turn(header.id(), bytes);
  }
  inbox_.deliver(
      source, header.id(), header.phase(),
      {std::move(call), {std::move(bytes), std::move(frame.tensors)}, header.sent_before()});
}

void Communicators::fail_epoch(std::uint64_t epoch, const Members& others, const std::string& why) {
  inbox_.fail_epoch(epoch, rank(), why);
  tell_each(others, [&](GlobalRank peer) {
    const CollectiveHeader header = CollectiveHeader::epoch_failed(epoch, sent(peer));
    send(peer, header.bytes(), why, {}, nullptr);
  });
}

void Communicators::announce_leaving(std::string_view why) {
  tell_each(channel_.members(), [&](GlobalRank peer) {
    const CollectiveHeader header = CollectiveHeader::leaving(sent(peer));
    channel_.send(peer, Port::kCollectives, header.bytes(), why, {});
  });
}

/// Tells each member but this rank. A member that is gone keeps no other from hearing it; the first
/// error is thrown at the end.
template <class Tell>
void Communicators::tell_each(const Members& members, Tell&& tell) const {
  std::exception_ptr first;
  for (const GlobalRank peer : members) {
    if (peer == rank()) continue;
    try {
      tell(peer);
    } catch (const Error&) {
      if (!first) first = std::current_exception();
    }
  }
  if (first) std::rethrow_exception(first);
}

}  // namespace smp::d2d
