// server/running/outgoing_calls.cpp: open calls end in program order.
#include "server/running/outgoing_calls.h"

#include <exception>

#include "smp/error.h"

namespace smp::server {

std::uint32_t OutgoingCalls::next_place(PpRank owner) {
  if (places_.size() <= owner.index()) places_.resize(owner.index() + 1, 0);
  return places_[owner.index()]++;
}

void OutgoingCalls::finish() {
  std::exception_ptr first;
  // What a result turns out to be may be asked for in the midst of it. They stay as long as the
  // execution, whatever comes: the program may have results of the last, and so all before it.
  const auto calls = std::exchange(open_, {});
  finished_.insert(finished_.end(), calls.begin(), calls.end());
  for (const auto& call : calls) {
    try {
      call->finish();
    } catch (const StepAborted&) {
      throw;
    } catch (...) {
      if (!first) first = std::current_exception();
    }
  }
  if (first) std::rethrow_exception(first);
}

void OutgoingCalls::fetch_all() {
  finish();
  const auto calls = std::exchange(finished_, {});
  for (const auto& call : calls) call->fetch_all();
}

void OutgoingCalls::abandon() noexcept {
  for (const auto& call : finished_) call->abandon();
  for (const auto& call : open_) call->abandon();
}

}  // namespace smp::server
