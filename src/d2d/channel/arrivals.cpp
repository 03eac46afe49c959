// d2d/channel/arrivals.cpp: see the header.
#include "d2d/channel/arrivals.h"

#include <utility>

#include "base/check.h"
#include "base/text/byte_text.h"
#include "d2d/channel/frame_decoder.h"

namespace smp::d2d {

void Arrivals::read(GlobalRank source, ByteBuffer&& control, const Routes& routes,
                    std::vector<Arrival>& whole) {
  Arrival arrival{source, decode(source, control, routes), {}};
  arrival.control = std::move(control);
  if (data_tensors_.empty()) return whole.push_back(std::move(arrival));
  std::size_t bytes = 0;
  for (const DataTensor& data : data_tensors_) bytes += data.tensor.nbytes();
  const Token token =
      incomplete_.put({std::move(arrival), data_tensors_.size(), bytes, clock_.now()});
  for (const DataTensor& data : data_tensors_) {
    const std::span<std::byte> place(static_cast<std::byte*>(data.tensor.mutable_data_ptr()),
                                     data.tensor.nbytes());
    wire_of(data, source, routes).receive(place, source, data.transfer, token);
  }
  data_tensors_.clear();
}

ReadFrame Arrivals::decode(GlobalRank source, const ByteBuffer& control, const Routes& routes) try {
  return decode_frame(control.span(), data_tensors_, {}, {routes.loans(source), source});
} catch (const InternalError& error) {
  throw InternalError(base::concat("from rank ", source, ": ", error.what()));
} catch (const UnsupportedError& error) {
  throw UnsupportedError(base::concat("from rank ", source, ": ", error.what()));
}

std::string Arrivals::overdue(base::Nanoseconds deadline) const {
  constexpr auto kEachByte = base::kSecond / 1'000'000;
  const auto now = clock_.now();
  for (std::size_t i = 0; i < incomplete_.bound(); ++i) {
    const auto& frame = incomplete_[i];
    const auto allowed = deadline + kEachByte * static_cast<base::Nanoseconds>(frame.bytes);
    if (frame.missing == 0 || now - frame.since <= allowed) continue;
    return base::concat(frame.missing, frame.missing == 1 ? " tensor" : " tensors",
                        " of a message from rank ", frame.arrival.source, " (",
                        base::byte_text(static_cast<std::int64_t>(frame.bytes)),
                        " in all) did not come within ", (now - frame.since) / base::kSecond,
                        " s, though the message itself has come");
  }
  return {};
}

Wire& Arrivals::wire_of(const DataTensor& tensor, GlobalRank source, const Routes& routes) const {
  const std::size_t wire = tensor.wire;
  SMP_REQUIRE_AS(InternalError,
                 wire < routes.wires().size() && routes.wires()[wire].reaches(source) &&
                     routes.wires()[wire].reaches(tensor.kind),
                 "a tensor of rank ", source, " is to come over wire ", wire,
                 ", which does not lead there; all ranks must name the same wires in the same "
                 "order. The routes here:\n",
                 routes.table());
  return routes.wires()[wire];
}

bool Arrivals::received(Token token, std::vector<Arrival>& whole) {
  if (--incomplete_[token].missing > 0) return false;
  whole.push_back(std::move(incomplete_.take(token).arrival));
  return true;
}

}  // namespace smp::d2d
