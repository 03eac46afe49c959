// d2d/wires/neuron/neuron_gathers.cpp: see the header.
#include "d2d/wires/neuron/neuron_gathers.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <exception>
#include <utility>

#include "base/check.h"
#include "base/keep_until_exit.h"
#include "d2d/wire/wire.h"
#include "d2d/wires/neuron/neuron_status.h"
#include "smp/error.h"

namespace smp::d2d {
namespace {

constexpr int kCopies = 0;         // a queue that all execution units have
constexpr int kCollectives = 0;    // the only one that is documented for them
constexpr int kBytes = 3;          // NRT_DTYPE_UINT8, from SDK 2.28 on
constexpr int kNoOperation = 0xf;  // NRT_OP_INVALID: a gather computes nothing
constexpr int kAllGather = 0;      // NRT_CC_ALLGATHER
constexpr const char* kRoot = "NEURON_RT_ROOT_COMM_ID";

}  // namespace

NeuronGathers::NeuronGathers(NeuronRuntime& runtime, RelativeCore core, std::size_t bytes,
                             base::Nanoseconds patience)
    : requests_(runtime, core), bytes_(bytes), patience_(patience) {
  SMP_REQUIRE(std::has_single_bit(bytes) && bytes >= kLeast && bytes < kLeast << kSizes, "rank ",
              runtime.rank(), ": ", bytes, " bytes for a gather; a power of two from ", kLeast,
              " on.");
  try {
    make_slots();
  } catch (...) {
    free_slots();
    throw;
  }
}

void NeuronGathers::make_slots() {
  auto& runtime = requests_.runtime();
  const auto& library = requests_.library();
  runtime.require_usable("nrt_tensor_allocate");
  const auto allocate = [&](std::size_t size, NeuronLibrary::Tensor*& tensor) {
    runtime.require(library.tensor_allocate(NeuronLibrary::kOnDevice, core().value(), size,
                                            "smp collectives", &tensor),
                    base::concat("setting ", size, " bytes of its memory aside"),
                    "nrt_tensor_allocate", core());
  };
  const auto slice = [&](NeuronLibrary::Tensor* of, std::size_t size,
                         NeuronLibrary::Tensor*& tensor) {
    runtime.require(library.tensor_allocate_slice(of, 0, size, "smp collectives", &tensor),
                    "preparing collectives", "nrt_tensor_allocate_slice", core());
  };
  allocate(bytes_, input_);
  allocate(2 * bytes_, output_);
  for (std::size_t i = 0; kLeast << i <= bytes_; ++i) {
    slice(input_, kLeast << i, slices_.at(i).input);
    slice(output_, 2 * (kLeast << i), slices_.at(i).output);
  }
}

NeuronGathers::~NeuronGathers() {
  if (requests_.runtime().is_closed()) return;  // which has freed everything
  const auto end = requests_.now() + std::min(NeuronRequests::kEndPatience, patience_);
  try {
    for (int rounds = 0; !idle() && requests_.now() < end; ++rounds) {
      if (requests_.is_done(*under_way_)) {
        under_way_ = nullptr;
      } else {
        wait_politely(rounds);
      }
    }
  } catch (const std::exception&) {  // a core that is lost; whoever asked was told
  }
  if (idle()) {
    free_slots();
  } else {
    requests_.keep_tracker();
    base::keep_until_exit(std::move(request_));
  }
}

void NeuronGathers::free_slots() noexcept {
  const auto free = [&](NeuronLibrary::Tensor*& tensor) {
    if (tensor != nullptr) requests_.library().tensor_free(&tensor);
  };
  for (auto& slice : slices_) {
    free(slice.input);
    free(slice.output);
  }
  free(input_);
  free(output_);
}

void NeuronGathers::join(int number, int all) {
  auto& runtime = requests_.runtime();
  runtime.require_usable("nrt_cc_global_comm_init");
  const char* const root = std::getenv(kRoot);
  runtime.require(
      requests_.library().collectives.global_init(static_cast<std::uint32_t>(core().value()),
                                                  static_cast<std::uint32_t>(number),
                                                  static_cast<std::uint32_t>(all)),
      base::concat("joining the collectives of ", all, " cores, which meet at an address (", kRoot,
                   root == nullptr ? " is not set" : "=", root == nullptr ? "" : root,
                   "; wanted is HOST:PORT of the first, on all ranks, before they start)"),
      "nrt_cc_global_comm_init", core());
  number_ = number;
  all_ = all;
}

std::size_t NeuronGathers::rounded(std::size_t size) const noexcept {
  return std::bit_ceil(std::max(size, kLeast));
}

bool NeuronGathers::load(const NeuronPlace& from, std::size_t size) {
  return copy(from, {input_, 0, bytes_, core()}, size, "copying bytes for a collective");
}

bool NeuronGathers::unload(int peer, std::size_t size, const NeuronPlace& to, std::size_t mine) {
  const auto offset = peer < number_ ? 0 : rounded(size);
  return copy({output_, offset, 2 * bytes_ - offset, core()}, to, mine,
              "copying bytes of a collective");
}

bool NeuronGathers::copy(const NeuronPlace& from, const NeuronPlace& to, std::size_t size,
                         const char* doing) {
  SMP_ASSERT(idle() && size <= from.room && size <= to.room, size, " bytes from ", from.room,
             " to ", to.room);
  requests_.runtime().require_usable("nrta_tensor_copy");
  doing_ = doing;
  peer_name_ = nullptr;
  *request_ = {};
  const auto& library = requests_.library();
  const int status =
      library.interface == NeuronInterface::kErrorTracker
          ? library.tracked.copy(from.tensor, from.offset, to.tensor, to.offset, size, kCopies,
                                 requests_.tracker(), &request_->sequence)
          : library.told.copy(from.tensor, from.offset, to.tensor, to.offset, size,
                              static_cast<std::uint32_t>(core().value()), kCopies,
                              &request_->result, &request_->sequence);
  return started(status, "nrta_tensor_copy");
}

bool NeuronGathers::enter(int peer, std::size_t size, const std::string& peer_name) {
  SMP_ASSERT(idle() && number_ >= 0 && peer != number_ && size <= bytes_, "a collective of ", size,
             " bytes with core ", peer);
  auto& runtime = requests_.runtime();
  runtime.require_usable("nrta_cc_prepare");
  doing_ = "exchanging bytes";
  peer_name_ = &peer_name;
  const auto& library = requests_.library();
  if (prepared_ == nullptr) {
    auto& call = *request_ = {};
    call.members = {static_cast<std::uint32_t>(std::min(peer, number_)),
                    static_cast<std::uint32_t>(std::max(peer, number_))};
    call.group = {call.members.data(),
                  number_ < peer ? 0U : 1U,
                  static_cast<std::uint32_t>(call.members.size()),
                  static_cast<std::uint32_t>(number_),
                  static_cast<std::uint32_t>(all_),
                  static_cast<std::uint32_t>(core().value())};
    call.tensors = slices_.at(static_cast<std::size_t>(std::countr_zero(rounded(size) / kLeast)));
    call.inputs = {&call.tensors.input, 1};
    call.outputs = {&call.tensors.output, 1};
    runtime.require(
        library.collectives.prepare(&call.group, &call.inputs, &call.outputs, kBytes, kNoOperation,
                                    kAllGather, &prepared_),
        [&] { return describe(); }, "nrta_cc_prepare", core());
  }
  const int status =
      library.interface == NeuronInterface::kErrorTracker
          ? library.tracked.schedule(&prepared_, kCollectives, requests_.tracker(),
                                     &request_->sequence)
          : library.told.schedule(&prepared_, kCollectives, &request_->result, &request_->sequence);
  if (!started(status, "nrta_cc_schedule")) return false;
  prepared_ = nullptr;  // the runtime's from now on
  return true;
}

bool NeuronGathers::started(int status, const char* call) {
  if (status == neuron_status::kQueueFull) return false;
  requests_.runtime().require(
      status, [&] { return describe(); }, call, core());
  request_->started = requests_.now();
  under_way_ = request_.get();
  return true;
}

bool NeuronGathers::done() {
  if (idle()) return true;
  requests_.runtime().require_usable("nrta_is_completed");
  if (!requests_.is_done(*under_way_)) {
    const auto waited = requests_.now() - under_way_->started;
    SMP_REQUIRE_AS(
        PeerLostError, waited < (peer_name_ == nullptr ? NeuronRequests::kLongestCopy : patience_),
        "rank ", requests_.runtime().rank(), ", Neuron core ",
        requests_.runtime().claim().absolute(core()), ": ", describe(), " is not done after ",
        waited / base::kSecond, " s: ",
        peer_name_ == nullptr ? "the core does not answer"
                              : "the other side has not entered the collective, or does not answer",
        "; restart from a checkpoint (`dmesg` tells what the driver saw)");
    return false;
  }
  const int result = requests_.result_of(*under_way_);
  under_way_ = nullptr;
  requests_.runtime().require(
      result, [&] { return describe(); }, "what it left", core());
  return true;
}

std::string NeuronGathers::describe() const {
  return peer_name_ == nullptr ? std::string(doing_) : base::concat(doing_, " with ", *peer_name_);
}

}  // namespace smp::d2d
