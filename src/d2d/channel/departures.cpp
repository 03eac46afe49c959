// d2d/channel/departures.cpp: see the header.
#include "d2d/channel/departures.h"

#include <utility>

#include "base/check.h"
#include "fiber/scheduler.h"

namespace smp::d2d {
namespace {

// Inference tensors have no version counter.
std::uint32_t version_of(const at::Tensor& tensor) {
  return tensor.is_inference() ? 0 : static_cast<std::uint32_t>(tensor._version());
}

}  // namespace

Token Departures::start(GlobalRank peer, std::size_t index, at::Tensor tensor,
                        c10::intrusive_ptr<c10::StorageImpl> memory,
                        std::shared_ptr<Departure> departure) {
  if (departure) ++departure->in_flight;
  const std::uint32_t version = version_of(tensor);
  return tensors_.put(
      {peer, index, version, std::move(tensor), std::move(memory), std::move(departure)});
}

std::optional<std::string> Departures::finish(Token token) {
  const Departing departed = tensors_.take(token);
  Departure* const departure = departed.departure.get();
  if (departure != nullptr && --departure->in_flight == 0 && departure->on_left != nullptr) {
    departure->on_left->signal();
  }
  const std::uint32_t version = version_of(departed.tensor);
  if (version == departed.version || departed.memory) return std::nullopt;
  return base::concat("tensor ", departed.index, ", ", departed.tensor.scalar_type(), ' ',
                      departed.tensor.sizes(), ',',
                      " was changed in place while it was being sent to rank ", departed.peer,
                      " (version ", departed.version, " became ", version,
                      "); that rank may have got a mixture. Do not write to a module's inputs and "
                      "outputs after handing them on, nor to variables that bodies captured, which "
                      "other microbatches hand on; clone() first.");
}

}  // namespace smp::d2d
