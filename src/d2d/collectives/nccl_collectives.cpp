// d2d/collectives/nccl_collectives.cpp: see the header.
#include "d2d/collectives/nccl_collectives.h"

#include <c10/core/DeviceGuard.h>

#include <chrono>
#include <cstring>
#include <future>
#include <optional>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/keep_until_exit.h"
#include "base/log.h"
#include "base/signals_blocked.h"
#include "d2d/wires/cuda/cuda_driver.h"
#include "smp/error.h"

namespace smp::d2d {
namespace {

constexpr int kOldest = 21400;  // the first with communicators that do not block
constexpr base::Nanoseconds kLeaveDeadline = 5 * base::kSecond;

/// Returns NCCL's type for sums of `dtype`; -1: NCCL cannot add these.
int type_of(c10::ScalarType dtype) noexcept {
  switch (dtype) {
    case c10::ScalarType::Char:
      return NcclLibrary::kInt8;
    case c10::ScalarType::Byte:
      return NcclLibrary::kUint8;
    case c10::ScalarType::Int:
      return NcclLibrary::kInt32;
    case c10::ScalarType::Long:
      return NcclLibrary::kInt64;
    case c10::ScalarType::Half:
      return NcclLibrary::kFloat16;
    case c10::ScalarType::BFloat16:
      return NcclLibrary::kBfloat16;
    case c10::ScalarType::Float:
    case c10::ScalarType::ComplexFloat:  // two of them
      return NcclLibrary::kFloat32;
    case c10::ScalarType::Double:
    case c10::ScalarType::ComplexDouble:
      return NcclLibrary::kFloat64;
    default:
      return -1;
  }
}

bool is_sum(CollectiveKind kind) noexcept {
  return kind == CollectiveKind::kAllReduce || kind == CollectiveKind::kReduceScatter;
}

/// Waits until all that was launched is done. Returns false if that takes too long or fails.
bool finalized(const NcclLibrary& nccl, void* communicator) {
  const base::SteadyClock clock;
  const auto end = clock.now() + kLeaveDeadline;
  int state = nccl.finalize(communicator);
  while (state == NcclLibrary::kInProgress) {
    if (clock.now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (nccl.get_async_error(communicator, &state) != NcclLibrary::kSuccess) return false;
  }
  return state == NcclLibrary::kSuccess;
}

std::string version_text(int version) {
  return base::concat(version / 10000, '.', version / 100 % 100, '.', version % 100);
}

}  // namespace

/// One call. Its events are used again as soon as it is gone: streams wait for an event as it was
/// recorded when they were told to.
class NcclCollectives::Call final : public DeviceCall {
 public:
  Call(NcclCollectives& owner, CollectiveKind kind, at::Tensor input, at::Tensor result)
      : owner_(owner),
        kind_(kind),
        input_(std::move(input)),
        result_(std::move(result)),
        caller_(owner.gpu_->current_stream()),
        computed_(owner.take_event()),
        done_(owner.take_event()) {
    owner_.gpu_->record(computed_, caller_);
  }
  /// Keeps the tensors of a call that failed in between: it may still be under way on the GPU.
  ~Call() override {
    if (started_ && !joined_)
      owner_.unfinished_.insert(owner_.unfinished_.end(), {input_, result_});
    owner_.free_events_.push_back(computed_);
    owner_.free_events_.push_back(done_);
  }

  bool launch() override {
    const c10::DeviceGuard device(owner_.device_);
    if (!started_) {
      started_ = true;
      owner_.gpu_->wait(owner_.stream_, computed_);
      owner_.start(kind_, input_, result_);
    }
    if (owner_.is_busy("a collective")) return false;  // its kernel may not be on the stream yet
    owner_.gpu_->record(done_, owner_.stream_);
    return true;
  }

  void join() override {
    owner_.gpu_->wait(caller_, done_);
    joined_ = true;
    auto* const current = owner_.gpu_->current_stream();
    if (current != caller_) owner_.gpu_->wait(current, done_);
  }

 private:
  NcclCollectives& owner_;
  const CollectiveKind kind_;
  const at::Tensor input_;
  const at::Tensor result_;
  const CudaDevice::Stream caller_;
  const CudaDevice::Event computed_;
  const CudaDevice::Event done_;
  bool started_ = false;
  bool joined_ = false;  // the caller's stream waits for it
};

NcclCollectives::NcclCollectives(const NcclLibrary& nccl, std::unique_ptr<CudaDevice> gpu,
                                 c10::Device device)
    : nccl_(nccl), gpu_(std::move(gpu)), device_(device) {
  int version = 0;
  require(nccl_.get_version(&version), "asking for NCCL's version");
  SMP_REQUIRE_AS(PeerLostError, version >= kOldest, "this is NCCL ", version_text(version),
                 ", and ", version_text(kOldest), " or newer is needed");
  stream_ = gpu_->make_stream();
}

NcclCollectives::~NcclCollectives() {
  abort();
  for (auto* const event : free_events_) gpu_->free_event(event);
  if (!left_behind_) gpu_->free_stream(stream_);
}

void NcclCollectives::require(int result, const char* what) const {
  if (result == NcclLibrary::kSuccess || result == NcclLibrary::kInProgress) return;
  const char* const more = nccl_.last_error(communicator_);
  throw PeerLostError(base::concat(
      what, " on ", device_, " failed, says NCCL: ", nccl_.error_string(result), " (", result, ")",
      more != nullptr && *more != '\0' ? ", " : "", more != nullptr ? more : "",
      "; restart from a checkpoint. NCCL_DEBUG=WARN tells more"));
}

bool NcclCollectives::is_busy(const char* what) const {
  SMP_REQUIRE_AS(PeerLostError, communicator_ != nullptr, what, " on ", device_,
                 ": NCCL's communicator has ended");
  int state = NcclLibrary::kSuccess;
  require(nccl_.get_async_error(communicator_, &state), what);
  require(state, what);
  return state == NcclLibrary::kInProgress;
}

CudaDevice::Event NcclCollectives::take_event() {
  if (free_events_.empty()) return gpu_->make_event(/*shared=*/false);
  auto* const event = free_events_.back();
  free_events_.pop_back();
  return event;
}

// ---- connecting ----

std::string NcclCollectives::make_id() {
  const c10::DeviceGuard device(device_);
  NcclLibrary::Id id{};
  require(nccl_.get_unique_id(&id), "making an id for a group");
  return {id.data(), id.size()};
}

void NcclCollectives::connect(const std::string& id, int position, int size) {
  const c10::DeviceGuard device(device_);
  NcclLibrary::Id bytes{};
  SMP_ASSERT(id.size() == bytes.size(), "an id of ", id.size(), " bytes");
  std::memcpy(bytes.data(), id.data(), id.size());
  NcclLibrary::Config config;
  config.blocking = 0;
  size_ = size;
  require(nccl_.init_rank(&communicator_, size, bytes, position, &config), "connecting");
}

// ---- collectives ----

bool NcclCollectives::takes(CollectiveKind kind, c10::ScalarType dtype) const noexcept {
  return !is_sum(kind) || type_of(dtype) >= 0;
}

NcclCollectives::Elements NcclCollectives::elements_of(CollectiveKind kind,
                                                       const at::Tensor& tensor) {
  if (!is_sum(kind)) return {NcclLibrary::kInt8, tensor.nbytes()};  // nothing but bytes move
  const auto numbers = static_cast<std::size_t>(tensor.numel());
  return {type_of(tensor.scalar_type()), tensor.is_complex() ? 2 * numbers : numbers};
}

std::unique_ptr<DeviceCall> NcclCollectives::prepare(CollectiveKind kind, at::Tensor input,
                                                     at::Tensor result) {
  return std::make_unique<Call>(*this, kind, std::move(input), std::move(result));
}

void NcclCollectives::start(CollectiveKind kind, const at::Tensor& input,
                            const at::Tensor& result) {
  if (kind == CollectiveKind::kAllToAll) return exchange_parts(input, result);
  const auto* const from = input.const_data_ptr();
  auto* const to = result.mutable_data_ptr();
  const auto [type, count] = elements_of(kind, input);
  if (kind == CollectiveKind::kAllReduce) {
    require(nccl_.all_reduce(from, to, count, type, NcclLibrary::kSum, communicator_, stream_),
            "an all_reduce");
  } else if (kind == CollectiveKind::kReduceScatter) {
    const auto part = count / static_cast<std::size_t>(size_);
    require(nccl_.reduce_scatter(from, to, part, type, NcclLibrary::kSum, communicator_, stream_),
            "a reduce_scatter");
  } else {
    require(nccl_.all_gather(from, to, count, type, communicator_, stream_), "an all_gather");
  }
}

/// Exchanges parts with all ranks in one group of NCCL's, or each would wait for the one before. A
/// group that began has to end.
void NcclCollectives::exchange_parts(const at::Tensor& input, const at::Tensor& result) {
  const auto* from = static_cast<const std::byte*>(input.const_data_ptr());
  auto* to = static_cast<std::byte*>(result.mutable_data_ptr());
  const auto bytes = input.nbytes() / static_cast<std::size_t>(size_);
  int wrong = nccl_.group_start();
  const auto keep = [&](int status) {
    if (wrong == NcclLibrary::kSuccess && status != NcclLibrary::kInProgress) wrong = status;
  };
  for (int peer = 0; peer < size_; ++peer, from += bytes, to += bytes) {
    keep(nccl_.send(from, bytes, NcclLibrary::kInt8, peer, communicator_, stream_));
    keep(nccl_.receive(to, bytes, NcclLibrary::kInt8, peer, communicator_, stream_));
  }
  keep(nccl_.group_end());
  require(wrong, "an all_to_all");
}

// ---- the end ----

/// Ends the communicator on a thread, since NCCL waits for other ranks there without a limit of its
/// own. A thread that takes too long is left behind, with the communicator.
void NcclCollectives::end(bool in_good_order) noexcept try {
  auto* const communicator = std::exchange(communicator_, nullptr);
  if (communicator == nullptr) return;
  std::promise<void> over;
  auto waiting = over.get_future();
  std::optional<base::SignalsBlocked> blocked(std::in_place);
  std::thread thread([communicator, in_good_order, device = device_, nccl = &nccl_,
                      over = std::move(over)]() mutable {
    try {
      const c10::DeviceGuard guard(device);
      if (in_good_order && finalized(*nccl, communicator)) {
        nccl->destroy(communicator);
      } else {
        nccl->abort(communicator);
      }
      over.set_value();
    } catch (...) {  // CUDA has failed for good, say
      over.set_exception(std::current_exception());
    }
  });
  blocked.reset();
  const auto deadline = std::chrono::nanoseconds(2 * kLeaveDeadline);
  if (waiting.wait_for(deadline) == std::future_status::ready) {
    thread.join();
    waiting.get();
    return unfinished_.clear();
  }
  thread.detach();
  left_behind_ = true;
  base::keep_until_exit(std::move(unfinished_));
  base::log(base::LogLevel::kWarning, "NCCL did not end its communicator on ", device_, " within ",
            2 * kLeaveDeadline / base::kSecond, " s; it is left as it is");
} catch (const std::exception& error) {
  base::log(base::LogLevel::kWarning, "NCCL's communicator on ", device_,
            " is left as it is: ", error.what());
}

void NcclCollectives::close() noexcept { end(/*in_good_order=*/true); }
void NcclCollectives::abort() noexcept { end(/*in_good_order=*/false); }

std::unique_ptr<DeviceCollectives> make_nccl_collectives(c10::Device device) {
  return std::make_unique<NcclCollectives>(nccl(), std::make_unique<CudaDriver>(device), device);
}

}  // namespace smp::d2d
