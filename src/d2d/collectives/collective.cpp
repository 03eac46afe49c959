// d2d/collectives/collective.cpp: see the header.
#include "d2d/collectives/collective.h"

#include <cstring>
#include <utility>

#include "base/check.h"
#include "d2d/collectives/collective_header.h"
#include "d2d/collectives/communicator.h"

namespace smp::d2d {

Collective::Collective(const Communicator& ranks, CollectiveCall call, const char* what)
    : owner_(*ranks.owner_),
      members_(ranks.members_),
      call_(ranks.as_part_of_program(std::move(call))),
      name_{what, members_->text().c_str(), ranks.call_of_program()},
      id_(owner_.inbox_.begin(ranks.lane_, call_)),
      departure_(std::make_shared<Departure>()) {}

Collective::Collective(const Communicator& ranks, std::uint64_t number, CollectiveCall call,
                       const char* what)
    : owner_(*ranks.owner_),
      members_(ranks.members_),
      call_(ranks.as_part_of_program(std::move(call))),
      name_{what, members_->text().c_str(), ranks.call_of_program()},
      id_(owner_.inbox_.begin(ranks.lane_, number, call_)),
      departure_(std::make_shared<Departure>()) {}

Collective::~Collective() { owner_.inbox_.end(id_); }

void Collective::send(GlobalRank peer, const Payload& payload) {
  send(CollectivePhase::kExchange, peer, payload.bytes, payload.tensors, departure_);
}

void Collective::send_part(GlobalRank peer, const at::Tensor& part) {
  send(CollectivePhase::kExchange, peer, {}, part, departure_);
}

void Collective::send_parts(CollectivePhase phase, GlobalRank peer,
                            c10::ArrayRef<at::Tensor> parts) {
  send(phase, peer, {}, parts, departure_);
}

void Collective::send_result(GlobalRank peer, const at::Tensor& result) {
  send(CollectivePhase::kResult, peer, {}, result, nullptr);
}

void Collective::send_result(GlobalRank peer, std::string_view result) {
  send(CollectivePhase::kResult, peer, result, {}, nullptr);
}

void Collective::send(CollectivePhase phase, GlobalRank peer, std::string_view bytes,
                      c10::ArrayRef<at::Tensor> tensors, std::shared_ptr<Departure> departure) {
  const CollectiveHeader header(id_, phase, call_, owner_.sent(peer));
  owner_.send(peer, header.bytes(), bytes, tensors, std::move(departure));
}

bool Collective::has_come(CollectivePhase phase, GlobalRank peer) const {
  return owner_.inbox_.has_come(id_, phase, peer);
}

bool Collective::is_decided(CollectivePhase phase, GlobalRank peer) const {
  return owner_.inbox_.is_decided(id_, phase, peer);
}

void Collective::watch(fiber::Event& event) { owner_.inbox_.watch(id_, event); }

Payload Collective::take(CollectivePhase phase, GlobalRank peer) {
  return owner_.inbox_.take(id_, phase, peer, name_);
}

at::Tensor Collective::take_tensor(CollectivePhase phase, GlobalRank peer, at::IntArrayRef sizes,
                                   c10::ScalarType dtype) {
  Payload payload = take(phase, peer);
  SMP_ASSERT(payload.tensors.size() == 1 && payload.tensors[0].defined() &&
                 payload.tensors[0].sizes() == sizes && payload.tensors[0].scalar_type() == dtype,
             name_.what, ": rank ", peer, " sent another part than ", dtype, ' ', sizes);
  return std::move(payload.tensors[0]);
}

void Collective::await_departure() { await(*departure_); }

void Collective::await(Departure& departure) { owner_.inbox_.await(id_, departure, name_); }

}  // namespace smp::d2d
