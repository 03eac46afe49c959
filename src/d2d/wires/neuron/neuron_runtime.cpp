// d2d/wires/neuron/neuron_runtime.cpp: see the header.
#include "d2d/wires/neuron/neuron_runtime.h"

#include <time.h>

#include <cstdlib>

#include "base/check.h"
#include "d2d/wires/neuron/neuron_status.h"
#include "smp/error.h"

namespace smp::d2d {
namespace {

constexpr int kNoFramework = 1;  // NRT_FRAMEWORK_TYPE_NO_FW; it only informs tools
constexpr int kLivesTwice = 34;  // the first runtime that may be started again
constexpr const char* kVisible = "NEURON_RT_VISIBLE_CORES";

NeuronRuntime*& living() {
  static NeuronRuntime* runtime = nullptr;
  return runtime;
}

/// Before what libnrt itself does at the end: it was loaded earlier.
void close_at_exit() {
  if (living() != nullptr) living()->close();
}

/// Whether the cores may be free a moment later.
bool may_be_taken(int status) {
  namespace is = neuron_status;
  return status == is::kFailure || status == is::kResource || status == is::kNotEnoughCores ||
         status == is::kCoreBusy;
}

}  // namespace

NeuronRuntime::NeuronRuntime(NeuronLibrary& library, GlobalRank rank, const CoreClaim& claim,
                             base::Nanoseconds patience)
    : library_(library), rank_(rank), claim_(claim) {
  check_claim();
  SMP_REQUIRE(!library.was_closed || library.minor >= kLivesTwice, "rank ", rank,
              ": this process has closed AWS Neuron's runtime ", library.version,
              ", which starts once only; start a new process, or install 2.", kLivesTwice, '.');
  init(patience);
  note_living();
}

NeuronRuntime::NeuronRuntime(NeuronLibrary& library, GlobalRank rank, const CoreClaim& claim,
                             OfFramework)
    : library_(library), rank_(rank), claim_(claim), is_framework_s_(true) {
  check_claim();
  closed_ = false;
  note_living();
}

void NeuronRuntime::check_claim() const {
  SMP_REQUIRE(claim_.count > 0 && claim_.first >= 0, "rank ", rank_, ": claiming ", claim_.count,
              " Neuron cores from ", claim_.first, " on; claim at least one.");
  SMP_REQUIRE(living() == nullptr, "rank ", rank_,
              ": this process has claimed Neuron cores already (", living()->claim().text(),
              "), and claims them once.");
}

void NeuronRuntime::note_living() {
  living() = this;
  static const bool registered = std::atexit(close_at_exit) == 0;
  SMP_ASSERT(registered);
}

void NeuronRuntime::init(base::Nanoseconds patience) {
  // The default would be every core of the instance.
  ::setenv(kVisible, claim_.text().c_str(), /*overwrite=*/1);
  const base::SteadyClock clock;
  const auto end = clock.now() + patience;
  int status = library_.init(kNoFramework, "", "");
  while (may_be_taken(status) && clock.now() < end) {
    const timespec pause{0, 20 * base::kMillisecond};
    ::nanosleep(&pause, nullptr);
    status = library_.init(kNoFramework, "", "");
  }
  if (status == neuron_status::kSuccess) {
    closed_ = false;
    return;
  }
  throw_neuron_error(
      status,
      base::concat("claiming the cores ", claim_.text(), " of ", kVisible, " for ",
                   patience / base::kSecond,
                   " s (another process may have them: `neuron-ls` shows which; and the driver may "
                   "be of another release than the runtime ",
                   library_.version, ")"),
      "nrt_init", {rank_, claim_.absolute(RelativeCore(0))});
}

NeuronRuntime::~NeuronRuntime() {
  close();
  if (living() == this) living() = nullptr;
}

void NeuronRuntime::close() noexcept {
  if (closed_ || !made_.is_here()) return;
  closed_ = true;
  if (is_framework_s_) return;
  library_.was_closed = true;
  library_.close();
}

void NeuronRuntime::require_usable(const char* call) const {
  SMP_REQUIRE(
      made_.is_here(), "rank ", rank_, ": ", call,
      " in a child that was forked after the Neuron cores ", claim_.text(),
      " were claimed: the driver knows processes by their numbers. Fork before smp::init(), "
      "or start the child as a program of its own.");
  SMP_REQUIRE_AS(PeerLostError, !closed_, "rank ", rank_, ": ", call,
                 " after AWS Neuron's runtime was closed; its memory is gone with it.");
  SMP_REQUIRE_AS(PeerLostError, lost_.empty(), "rank ", rank_, ": ", call,
                 " after a Neuron core was lost: ", lost_);
}

void NeuronRuntime::fail(int status, const std::string& doing, const char* call,
                         RelativeCore core) {
  if (status == neuron_status::kExecutionUnitLost) lost_ = text_of_status(status);
  throw_neuron_error(status, doing, call, {rank_, claim_.absolute(core)});
}

}  // namespace smp::d2d
