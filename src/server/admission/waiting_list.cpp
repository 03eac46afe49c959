// server/admission/waiting_list.cpp: texts, and memory that is used again.
#include "server/admission/waiting_list.h"

namespace smp::server {

const char* text_of(Reason reason) noexcept {
  switch (reason) {
    case Reason::kRow:
      return "an earlier request of the same execution";
    case Reason::kPromisedInput:
      return "an argument that another module has promised";
    case Reason::kWindow:
      return "a lower microbatch to end here, as the schedule wants";
    case Reason::kForwardOfEarlyBackward:
      return "the forward of the same microbatch here";
    case Reason::kPromisedGradient:
      return "a gradient that comes from the backward of another module";
    case Reason::kMicrobatchOrder:
      return "lower microbatches to leave what keeps state";
    case Reason::kBackwardGate:
      return "the schedule to begin backward";
    case Reason::kHold:
      return "what the schedule has before";
  }
  return "";
}

const PpRank* Waiting::asker() const noexcept {
  if (const auto* forward = std::get_if<ForwardTask>(&task)) return &forward->source;
  const auto* backward = std::get_if<BackwardTask>(&task);
  return backward == nullptr ? nullptr : &backward->source;
}

WaitingList::Entry WaitingList::add(Reason reason, std::int32_t microbatch, ModuleId module,
                                    WorkerTask&& task) {
  if (spare_.empty()) spare_.emplace_back();
  const auto entry = spare_.begin();
  *entry = {reason, microbatch, module, clock_.now(), std::move(task)};
  waiting_.splice(waiting_.end(), spare_, entry);
  return entry;
}

void WaitingList::remove(Entry entry) noexcept {
  entry->task = BodyTask();  // its tensors end here
  spare_.splice(spare_.begin(), waiting_, entry);
}

}  // namespace smp::server
