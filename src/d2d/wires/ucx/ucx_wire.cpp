// d2d/wires/ucx/ucx_wire.cpp: see the header.
#include "d2d/wires/ucx/ucx_wire.h"

#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "d2d/wires/ucx/ucx_library.h"
#include "smp/error.h"

namespace smp::d2d {
namespace {

// A tag is a kind (2 bits), the sender's position (14 bits) and a number (48 bits): of data the
// transfer's, with the job's secret in it, else the secret.
constexpr unsigned kKindShift = 62;
constexpr unsigned kSourceShift = 48;
constexpr std::uint64_t kSourceMask = 0x3fff;
constexpr std::uint64_t kNumberMask = (std::uint64_t{1} << kSourceShift) - 1;
constexpr std::uint64_t kFromAnyone = ~(kSourceMask << kSourceShift);  // of those in the secret
constexpr std::uint64_t kWholeTag = ~std::uint64_t{0};
enum class TagKind : std::uint64_t { kData, kControl, kGoodbye };

std::uint64_t tag_of(TagKind kind, int source, std::uint64_t number) {
  return static_cast<std::uint64_t>(kind) << kKindShift |
         static_cast<std::uint64_t>(source) << kSourceShift | (number & kNumberMask);
}
int source_of(std::uint64_t tag) { return static_cast<int>(tag >> kSourceShift & kSourceMask); }

/// The most control messages read in one poll.
constexpr int kMostControl = 32;
/// The most bytes of a control message; a longer one is no message of ours.
constexpr std::size_t kLongestControl = std::size_t{1} << 30;
constexpr base::Nanoseconds kToClose = 2 * base::kSecond;

}  // namespace

struct UcxWire::Callbacks {
  static void on_error(void* arg, ucp_ep_h /*endpoint*/, ucs_status_t status) {
    auto& peer = *static_cast<Peer*>(arg);
    peer.wire->lose(peer, base::concat("the connection to rank ", peer.rank,
                                       " over UCX is broken (", ucx().status_string(status), ')'));
  }
  static void on_sent(void* request, ucs_status_t status, void* operation) {
    on_done(request, status, operation);
  }
  static void on_received(void* request, ucs_status_t status, const ucp_tag_recv_info_t* /*info*/,
                          void* operation) {
    on_done(request, status, operation);
  }

 private:
  static void on_done(void* request, ucs_status_t status, void* arg) {
    auto& operation = *static_cast<Operation*>(arg);
    operation.status = status;
    operation.wire->done_.push_back(&operation);
    ucx().request_free(request);
  }
};

UcxWire::UcxWire(GlobalRank rank, Members members, std::unique_ptr<UcxWorker> worker,
                 const std::vector<std::string>& addresses, std::uint64_t secret)
    : Wire(rank, std::move(members)), worker_(std::move(worker)), secret_(secret) {
  const auto size = static_cast<std::size_t>(this->members().size());
  SMP_ASSERT(addresses.size() == size && size <= kSourceMask, addresses.size(), " addresses");
  for (std::size_t i = 0; i < size; ++i) {
    peers_.push_back(std::make_unique<Peer>());
    peers_.back()->wire = this;
    peers_.back()->rank = this->members()[static_cast<int>(i)];
  }
  try {
    for (std::size_t i = 0; i < size; ++i) {
      if (peers_[i]->rank != rank) connect(*peers_[i], addresses[i]);
    }
  } catch (...) {
    disconnect();
    throw;
  }
}

void UcxWire::connect(Peer& peer, const std::string& address) {
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(address.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler = {&Callbacks::on_error, &peer};
  const auto status = ucx().ep_create(worker_->get(), &params, &peer.endpoint);
  SMP_REQUIRE_AS(PeerLostError, status == UCS_OK, "rank ", rank(), ": connecting to rank ",
                 peer.rank, " over UCX failed: ", ucx().status_string(status),
                 "; look at UCX_TLS and UCX_NET_DEVICES, or use transport = auto");
}

UcxWire::~UcxWire() { disconnect(); }

/// Closes all connections, and waits until UCX lets go of the memory that it was given.
void UcxWire::disconnect() noexcept {
  std::vector<void*> closing;
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  params.flags = UCP_EP_CLOSE_FLAG_FORCE;
  for (auto& peer : peers_) {
    if (peer->endpoint == nullptr) continue;
    void* const request = ucx().ep_close(peer->endpoint, &params);
    if (UCS_PTR_IS_PTR(request)) closing.push_back(request);
  }
  const base::SteadyClock clock;
  const auto end = clock.now() + kToClose;
  for (void* const request : closing) {
    while (ucx().request_status(request) == UCS_INPROGRESS && clock.now() < end) {
      worker_->progress();
    }
    ucx().request_free(request);
  }
  worker_.reset();  // what it still calls back needs peers and operations
}

// ---- operations --------------------------------------------------------------------------------

UcxWire::Operation& UcxWire::make(Kind kind, Peer& peer, Token token, std::size_t bytes) {
  // What has arrived can be taken whoever is lost.
  if (kind != Kind::kControlReceive) require_no_loss();
  if (free_.empty()) {
    operations_.push_back(std::make_unique<Operation>());
    free_.push_back(operations_.back().get());
  }
  auto& operation = *free_.back();
  free_.pop_back();
  operation = Operation{this, &peer, kind, token, bytes, {}, 0, UCS_OK};
  return operation;
}

/// Starts an operation. UCX calls nobody about one that is done at once.
template <class Start>
void UcxWire::start(Operation& operation, Start&& start) {
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  params.user_data = &operation;
  void* const request = start(params);
  if (UCS_PTR_IS_PTR(request)) return;
  operation.status = UCS_PTR_RAW_STATUS(request);
  done_.push_back(&operation);
}

void UcxWire::send_tagged(std::span<const std::byte> bytes, std::uint64_t tag,
                          Operation& operation) {
  ++sends_in_flight_;
  start(operation, [&](ucp_request_param_t& params) {
    params.cb.send = &Callbacks::on_sent;
    return ucx().tag_send(operation.peer->endpoint, bytes.data(), bytes.size(), tag, &params);
  });
}

void UcxWire::post(GlobalRank to, ByteBuffer&& bytes) {
  auto& operation = make(Kind::kControlSend, peer(to), 0, bytes.size());
  operation.control = std::move(bytes);
  send_tagged(operation.control.span(),
              tag_of(TagKind::kControl, members().position(rank()), secret_), operation);
}

void UcxWire::send(std::span<const std::byte> bytes, GlobalRank to, TransferId id, Token token) {
  auto& operation = make(Kind::kSend, peer(to), token, bytes.size());
  send_tagged(bytes, tag_of(TagKind::kData, members().position(rank()), id ^ secret_), operation);
}

void UcxWire::receive(std::span<std::byte> bytes, GlobalRank from, TransferId id, Token token) {
  auto& operation = make(Kind::kReceive, peer(from), token, bytes.size());
  start(operation, [&](ucp_request_param_t& params) {
    params.cb.recv = &Callbacks::on_received;
    return ucx().tag_receive(worker_->get(), bytes.data(), bytes.size(),
                             tag_of(TagKind::kData, members().position(from), id ^ secret_),
                             kWholeTag, &params);
  });
}

void UcxWire::finish(Operation& operation) {
  const auto kind = operation.kind;
  const auto token = operation.token;
  const bool is_receive = kind == Kind::kReceive || kind == Kind::kControlReceive;
  // What goes to a peer that has left need not arrive; what has not come is not there.
  const bool failed = operation.status != UCS_OK && (is_receive || !operation.peer->has_left);
  if (failed) lose(*operation.peer, loss_of(operation));
  if (kind == Kind::kFlush) --flushes_in_flight_;
  if (kind == Kind::kSend || kind == Kind::kControlSend) --sends_in_flight_;
  if (kind == Kind::kControlSend) buffers_.give(std::move(operation.control));
  if (kind == Kind::kControlReceive && !failed) {
    auto& source = *operation.peer;
    SMP_ASSERT(source.arriving.put(operation.number, std::move(operation.control)));
    readable_.push_back(&source);
  }
  free_.push_back(&operation);  // before the handler, who may start another
  if (failed) return;
  if (kind == Kind::kSend) handler().on_sent(token);
  if (kind == Kind::kReceive) handler().on_received(token);
}

std::string UcxWire::loss_of(const Operation& operation) {
  const bool receiving =
      operation.kind == Kind::kReceive || operation.kind == Kind::kControlReceive;
  return base::concat(receiving ? "receiving " : "sending ", operation.bytes, " bytes ",
                      receiving ? "from" : "to", " rank ", operation.peer->rank,
                      " over UCX failed (",
                      ucx().status_string(static_cast<ucs_status_t>(operation.status)), ')');
}

void UcxWire::lose(Peer& peer, const std::string& what) {
  any_loss_ = true;
  if (peer.loss.empty()) peer.loss = what;
}

/// Throws if a peer is lost. A peer that has said goodbye closes its connections, which may be seen
/// before the goodbye is read.
void UcxWire::require_no_loss() {
  if (!any_loss_) return;
  take_goodbyes();
  for (const auto& peer : peers_) {
    SMP_REQUIRE_AS(PeerLostError, peer->loss.empty() || peer->has_left, "rank ", rank(), ": ",
                   peer->loss,
                   ": that rank or the network between is gone; restart from a checkpoint");
  }
}

bool UcxWire::complete() {
  if (worker_->progress()) note_stir();
  bool any = false;
  while (!done_.empty()) {  // the handler may start others
    any = true;
    reporting_.swap(done_);
    for (auto* const operation : reporting_) finish(*operation);
    reporting_.clear();
  }
  return any;
}

bool UcxWire::poll() {
  bool moved = complete();
  for (int i = 0; i < kMostControl && receive_control(); ++i) moved = true;
  moved |= complete();
  while (!readable_.empty()) {
    auto* const source = std::exchange(readable_.back(), nullptr);
    readable_.pop_back();
    hand_on_complete(*source);
    moved = true;
  }
  if (!moved) require_no_loss();  // whoever is lost may have said why
  return moved;
}

/// Returns the sender of a message.
/// @throws PeerLostError  no rank of this job can have sent it.
UcxWire::Peer& UcxWire::sender_of(std::uint64_t tag, std::size_t bytes) {
  const auto source = static_cast<std::size_t>(source_of(tag));
  SMP_REQUIRE_AS(
      PeerLostError,
      source < peers_.size() && peers_[source]->endpoint != nullptr && bytes <= kLongestControl,
      "rank ", rank(), ": a message over UCX came that makes no sense (position ", source,
      " among ", peers_.size(), " ranks, ", bytes, " bytes): do all ranks run the same build?");
  return *peers_[source];
}

bool UcxWire::receive_control() {
  ucp_tag_recv_info_t info;
  const auto message = ucx().tag_probe(worker_->get(), tag_of(TagKind::kControl, 0, secret_),
                                       kFromAnyone, /*remove=*/1, &info);
  if (message == nullptr) return false;
  auto& source = sender_of(info.sender_tag, info.length);
  auto& operation = make(Kind::kControlReceive, source, 0, info.length);
  operation.number = source.probed++;
  operation.control = buffers_.take();
  operation.control.resize(info.length);
  start(operation, [&](ucp_request_param_t& params) {
    params.cb.recv = &Callbacks::on_received;
    return ucx().tag_receive_message(worker_->get(), operation.control.data(), info.length, message,
                                     &params);
  });
  return true;
}

// Keeps the order of control bytes from one source: short ones may be complete before long ones.
void UcxWire::hand_on_complete(Peer& source) {
  while (auto control = source.arriving.take()) {
    complete();
    handler().on_control(source.rank, std::move(*control));
  }
}

// ---- leaving -----------------------------------------------------------------------------------

void UcxWire::take_goodbyes() {
  ucp_tag_recv_info_t info;
  while (auto* const message =
             ucx().tag_probe(worker_->get(), tag_of(TagKind::kGoodbye, 0, secret_), kFromAnyone,
                             /*remove=*/1, &info)) {
    ucp_request_param_t params{};
    void* const request = ucx().tag_receive_message(worker_->get(), nullptr, 0, message, &params);
    if (UCS_PTR_IS_PTR(request)) ucx().request_free(request);
    sender_of(info.sender_tag, info.length).has_left = true;
  }
}

/// Leaves: every rank says goodbye, which is the last that others hear of it; one that has heard
/// all makes sure that its own goodbyes have left, too.
bool UcxWire::leave() {
  const auto for_each_peer = [&](const auto& action) {
    for (auto& peer : peers_) {
      if (peer->endpoint != nullptr) action(*peer);
    }
  };
  complete();
  if (leaving_ == Leaving::kNo) {
    if (!drained()) return false;
    for_each_peer([&](Peer& peer) {
      send_tagged({}, tag_of(TagKind::kGoodbye, members().position(rank()), secret_),
                  make(Kind::kControlSend, peer, 0, 0));
    });
    leaving_ = Leaving::kWaiting;
  }
  take_goodbyes();
  if (leaving_ == Leaving::kWaiting) {
    bool all = true;
    for_each_peer([&](Peer& peer) { all &= peer.has_left; });
    if (!all || !drained()) return false;
    for_each_peer([&](Peer& peer) {
      ++flushes_in_flight_;
      start(make(Kind::kFlush, peer, 0, 0), [&](ucp_request_param_t& params) {
        params.cb.send = &Callbacks::on_sent;
        return ucx().ep_flush(peer.endpoint, &params);
      });
    });
    leaving_ = Leaving::kFlushing;
  }
  complete();
  if (flushes_in_flight_ == 0) leaving_ = Leaving::kLeft;
  return leaving_ == Leaving::kLeft;
}

}  // namespace smp::d2d
