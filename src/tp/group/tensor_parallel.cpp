// tp/group/tensor_parallel.cpp: see the header.
#include "tp/group/tensor_parallel.h"

#include "base/check.h"
#include "base/random.h"

namespace smp::tp {
namespace {

/// The lanes of a group outside of steps; those of steps are in epochs of their own.
constexpr std::uint64_t kOutsideForward = 0x7470f;
constexpr std::uint64_t kOutsideBackward = 0x7470b;

std::string text_of(const d2d::Communicator& ranks, const char* what,
                    const std::optional<module::CallPlace>& place, const char* direction) {
  const auto rank = ranks.members()[ranks.rank()];
  if (!place) return base::concat("rank ", rank, ", outside of a step: ", what, direction);
  return base::concat("rank ", rank, ", module '", place->path, "', microbatch ", place->microbatch,
                      ": ", what, direction);
}

}  // namespace

Meeting::Meeting(const d2d::Communicator& ranks, const char* what,
                 const std::optional<module::CallPlace>& place)
    : ranks_(ranks),
      place_(place.value_or(module::CallPlace{})),
      text_(text_of(ranks, what, place, "")),
      text_of_backward_(text_of(ranks, what, place, " (backward)")) {}

d2d::Communicator Meeting::forward() const {
  const auto lane = place_.step == 0 ? ranks_.lane(kOutsideForward)
                                     : ranks_.lane(base::mix_key(place_.key, 0), place_.step);
  return lane.named(text_.c_str());
}

d2d::Communicator Meeting::backward() const {
  const auto lane = place_.step == 0 ? ranks_.lane(kOutsideBackward)
                                     : ranks_.lane(base::mix_key(place_.key, 1), place_.step);
  return lane.named(text_of_backward_.c_str());
}

const base::FiberLocal<TensorParallel>& TensorParallel::local() {
  static const base::FiberLocal<TensorParallel> own;
  return own;
}

TensorParallel& TensorParallel::current() {
  auto* const own = local().get();
  SMP_REQUIRE(own != nullptr,
              "a distributed module, or a collective of one, without a session: call smp::init "
              "first, and use them on the thread that called it");
  return *own;
}

std::shared_ptr<const Meeting> TensorParallel::meet(const char* what) {
  return std::make_shared<const Meeting>(ranks_, what, places_.next());
}

void TensorParallel::require_current(const Meeting& meeting) {
  const auto now = places_.next();
  const auto step = now ? now->step : 0;
  SMP_REQUIRE(step == meeting.step(), meeting.text(), ": its backward runs ",
              step == 0 ? "outside of steps" : "in a step", ", but its forward ran ",
              meeting.step() == 0 ? "outside of steps" : "in an earlier one",
              "; do not keep tensors with history from one step to the next (detach() them)");
}

}  // namespace smp::tp
