// d2d/collectives/device_group.cpp: see the header.
#include "d2d/collectives/device_group.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/InferenceMode.h>

#include <cstdint>
#include <cstring>
#include <exception>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "d2d/collectives/collective.h"
#include "d2d/tensors/tensor_data.h"
#include "fiber/scheduler.h"

namespace smp::d2d {
namespace {

constexpr base::Nanoseconds kLookEvery = base::kMillisecond;
/// The time that is left for the calls which a member has launched before it left.
constexpr base::Nanoseconds kGrace = 5 * base::kSecond;

at::Tensor brought_to(c10::Device device, const at::Tensor& tensor) {
  if (tensor.device() == device) return tensor;
  const c10::InferenceMode normal(false);
  const at::AutoDispatchBelowADInplaceOrView no_history;
  return tensor.to(device);
}

}  // namespace

/// Announces a call, from when the others are told until its fiber returns.
class DeviceGroup::Announcement {
 public:
  Announcement(DeviceGroup& group, const CollectiveId& id, std::unique_ptr<DeviceCall> call)
      : group_(group), id_(id), own_(std::make_shared<AnnouncedCall>(std::move(call))) {
    group_.order_.announce(id_, own_);
  }
  /// Withdraws the call if it has no turn: the leader gives it none any more, and the others wait
  /// for what the leader does.
  ~Announcement() {
    own_->awaited = false;
    if (group_.rank_ == group_.members_[0]) group_.order_.withdraw(id_);
    if (own_->launch.in_flight != 0 || joined_) return;
    try {
      join();
    } catch (const std::exception& error) {  // what unwinds says more
      base::log(base::LogLevel::kWarning, "rank ", group_.rank_, ": ", error.what());
    }
  }
  Announcement(const Announcement&) = delete;
  Announcement& operator=(const Announcement&) = delete;

  Departure& launch() const noexcept { return own_->launch; }
  void join() {
    joined_ = true;
    own_->call->join();
  }

 private:
  DeviceGroup& group_;
  const CollectiveId id_;
  const std::shared_ptr<AnnouncedCall> own_;
  bool joined_ = false;
};

DeviceGroup::DeviceGroup(const Communicator& ranks, std::unique_ptr<DeviceCollectives> devices,
                         OnFailure on_failure)
    : members_(ranks.members()),
      rank_(members_[ranks.rank()]),
      on_failure_(std::move(on_failure)),
      devices_(std::move(devices)),
      poll_(fiber::Scheduler::instance().add_poll([this] { return poll(); })) {}

/// Ends the collectives of the devices, at once if they have failed, else in good order: also while
/// an exception unwinds this rank, what others have launched with it is to end.
DeviceGroup::~DeviceGroup() {
  poll_.reset();
  if (failure_.empty()) {
    devices_->close();
  } else {
    devices_->abort();
  }
}

bool DeviceGroup::takes(CollectiveKind kind, const at::Tensor& tensor) const noexcept {
  return tensor.device().type() == devices_->device().type() && tensor.numel() > 0 &&
         devices_->takes(kind, tensor.scalar_type());
}

at::Tensor DeviceGroup::run(const Communicator& ranks, const CollectiveCall& call, const char* what,
                            const at::Tensor& tensor, at::IntArrayRef sizes) {
  require_working(what);
  Collective collective(ranks, call, what);
  at::Tensor input = brought_to(devices_->device(), contiguous_data(detached(tensor)));
  at::Tensor result = new_tensor(sizes, tensor.scalar_type(), tensor.device().type());
  Announcement own(*this, collective.id(), devices_->prepare(call.kind, std::move(input), result));
  agree(ranks, collective);
  collective.await(own.launch());
  require_working(what);  // else what it launched was ended
  own.join();
  return result;
}

void DeviceGroup::require_working(const char* what) const {
  SMP_REQUIRE_AS(PeerLostError, failure_.empty(), "rank ", rank_, ": ", what, " of ",
                 members_.text(), ": ", failure_);
}

void DeviceGroup::agree(const Communicator& ranks, Collective& collective) {
  for (const GlobalRank peer : ranks.members()) {
    if (peer != rank_) collective.send(peer, {});
  }
  for (const GlobalRank peer : ranks.members()) {
    if (peer != rank_) collective.take(CollectivePhase::kExchange, peer);
  }
  const GlobalRank leader = ranks.members()[0];
  if (rank_ != leader) {  // take_turn() has seen the message before
    collective.take(CollectivePhase::kResult, leader);
    return;
  }
  const std::uint64_t turn = order_.give_turn(collective.id());
  const std::string_view message(reinterpret_cast<const char*>(&turn), sizeof turn);
  for (const GlobalRank peer : ranks.members()) {
    if (peer != rank_) collective.send_result(peer, message);
  }
  launch();
}

void DeviceGroup::take_turn(const CollectiveId& id, std::string_view message) {
  std::uint64_t turn = 0;
  SMP_ASSERT(message.size() == sizeof turn, "rank ", rank_, ": a turn of ", message.size(),
             " bytes");
  std::memcpy(&turn, message.data(), sizeof turn);
  if (!failure_.empty()) return;
  order_.set_turn(id, turn);
  launch();
}

bool DeviceGroup::launch() noexcept {
  if (!failure_.empty()) return false;
  try {
    return order_.launch();
  } catch (const std::exception& error) {
    fail(error.what());
    return false;
  }
}

/// Notes the failure; poll() tells the others.
void DeviceGroup::fail(const char* error) noexcept {
  failure_ = base::concat("rank ", rank_, ": the collectives of ", members_.text(),
                          " cannot go on: ", error);
}

bool DeviceGroup::poll() noexcept {
  const bool moved = launch();
  if (failure_.empty()) look_at_devices();
  if (failure_.empty() || reported_) return moved;
  reported_ = true;
  on_failure_(failure_);  // first: ending what devices do may take its time
  devices_->abort();
  return true;
}

/// Looks for errors of the devices, which also come after a launch, and for calls that cannot end:
/// if a member left without launching what the others did, their devices would wait for ever.
void DeviceGroup::look_at_devices() noexcept {
  const auto now = fiber::Scheduler::instance().clock().now();
  if (now - looked_ < kLookEvery) return;
  looked_ = now;
  try {
    devices_->connected();
  } catch (const std::exception& error) {
    return fail(error.what());
  }
  if (deserted_ != 0 && now - deserted_ > kGrace) abort(why_left_);
}

void DeviceGroup::member_left(const std::string& why) {
  if (deserted_ != 0) return;
  deserted_ = fiber::Scheduler::instance().clock().now();
  why_left_ = why;
}

void DeviceGroup::abort(const std::string& why) noexcept {
  if (!failure_.empty()) return;
  failure_ = why;
  reported_ = true;
  devices_->abort();
}

}  // namespace smp::d2d
