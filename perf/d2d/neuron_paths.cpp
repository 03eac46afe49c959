// perf/d2d/neuron_paths.cpp: see the header.
#include "d2d/neuron_paths.h"

#include <dlfcn.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "d2d/pipe.h"
#include "d2d/wires/neuron/neuron_status.h"
#include "d2d/wires/neuron/played/played_nrt.h"
#include "d2d/wires/neuron_paths/neuron_collective_wire.h"
#include "d2d/wires/neuron_paths/neuron_send_receive_wire.h"
#include "d2d/wires/neuron_paths/neuron_staging_wire.h"
#include "heap_allocations.h"

namespace smp::perf::d2d_program {
namespace {

using d2d::RelativeCore;

constexpr int kMessages = 200;  // of a sample
constexpr int kSamples = 101;

std::filesystem::path played_file() {
  const auto program = std::filesystem::read_symlink("/proc/self/exe");
  return program.parent_path().parent_path() / "tests" / "libnrt" / "2.34" / "libnrt.so.1";
}

/// The played runtime, whose requests are done at the first look.
class Runtime {
 public:
  static constexpr int kRanks = 2;  ///< of wires, on the first cores; the calls alone have others
  static constexpr int kCores = 2 * kRanks;
  explicit Runtime(const std::string& file) : library(d2d::load_neuron(file.c_str())) {
    ::setenv("NEURON_RT_ASYNC_SENDRECV_EXPERIMENTAL_ENABLED", "1", 1);
    ::setenv("NEURON_RT_ASYNC_SENDRECV_BOOTSTRAP_PORT", "45645", 1);
    ::setenv("NEURON_RT_ROOT_COMM_ID", "127.0.0.1:45646", 1);
    void* const handle = ::dlopen(file.c_str(), RTLD_NOW | RTLD_NOLOAD);
    using GetControl = const played::Control* (*)();
    const auto control = reinterpret_cast<GetControl>(::dlsym(handle, "played_nrt"));
    control()->start_anew();
    control()->knobs->late = 0;
    runtime = std::make_unique<d2d::NeuronRuntime>(
        library, GlobalRank(0), d2d::CoreClaim{0, kCores, control()->knobs->first_absolute});
    for (int core = 0; core < kCores; ++core) {
      tensors.push_back(control()->all_host_memory(core));
    }
  }

  d2d::NeuronLibrary library;
  std::unique_ptr<d2d::NeuronRuntime> runtime;
  std::vector<d2d::NeuronLibrary::Tensor*> tensors;  // in which an offset is an address
};

class AllOfTheHost final : public d2d::NeuronPlaces {
 public:
  explicit AllOfTheHost(d2d::NeuronLibrary::Tensor* tensor) : tensor_(tensor) {}
  std::optional<d2d::NeuronPlace> find(const std::byte* address) const override {
    const auto offset = reinterpret_cast<std::uintptr_t>(address);
    return d2d::NeuronPlace{tensor_, offset, SIZE_MAX - offset, RelativeCore(0)};
  }

 private:
  d2d::NeuronLibrary::Tensor* tensor_;
};

struct Buffers {
  explicit Buffers(std::size_t size) : from(size, std::byte{1}), to(size) {}
  std::vector<std::byte> from, to;
};

/// One transfer after the other, from the first rank to the second.
class OverWires final : public d2d::WireHandler {
 public:
  using Make = std::function<std::unique_ptr<d2d::Wire>(std::unique_ptr<d2d::Wire> messages,
                                                        const d2d::NeuronPlaces&, int rank)>;
  OverWires(const Runtime& runtime, const Make& make) {
    const auto pipe = std::make_shared<PipeEnds>();
    for (int rank = 0; rank < Runtime::kRanks; ++rank) {
      places_.push_back(
          std::make_unique<AllOfTheHost>(runtime.tensors[static_cast<std::size_t>(rank)]));
      wires_.push_back(make(std::make_unique<Pipe>(pipe, GlobalRank(rank)), *places_.back(), rank));
      wires_.back()->set_handler(this);
    }
  }
  ~OverWires() {
    for (auto& wire : wires_) {
      SMP_ASSERT(wire->close(10 * base::kSecond), "the wire was not left");
    }
  }
  std::vector<std::unique_ptr<d2d::Wire>>& wires() { return wires_; }

  void message(Buffers& buffers) {
    done_ = 0;
    ++id_;
    wires_[1]->receive(buffers.to, GlobalRank(0), id_, 1);
    wires_[0]->send(buffers.from, GlobalRank(1), id_, 1);
    while (done_ < 2) {
      wires_[0]->poll();
      wires_[1]->poll();
    }
  }

 private:
  void on_control(GlobalRank, d2d::ByteBuffer&&) override {}
  void on_sent(d2d::Token) override { ++done_; }
  void on_received(d2d::Token) override { ++done_; }

  std::vector<std::unique_ptr<d2d::NeuronPlaces>> places_;
  std::vector<std::unique_ptr<d2d::Wire>> wires_;
  int done_ = 0;
  d2d::TransferId id_ = 0;
};

void require(int status) {
  SMP_REQUIRE(status == d2d::neuron_status::kSuccess, d2d::text_of_status(status));
}

std::uint64_t offset_of(const std::vector<std::byte>& bytes) {
  return reinterpret_cast<std::uintptr_t>(bytes.data());
}

/// The calls that a transfer by send and receive is made of.
class SendReceiveCalls {
 public:
  explicit SendReceiveCalls(const Runtime& runtime)
      : runtime_(runtime), calls_(runtime.library.send_receive) {
    const auto& claim = runtime.runtime->claim();
    for (int rank = 0; rank < Runtime::kRanks; ++rank) {
      cores_.at(static_cast<std::size_t>(rank)) =
          claim.absolute(RelativeCore(Runtime::kRanks + rank)).value();
    }
    for (const int core : cores_) require(calls_.init(core));
    require(calls_.connect("127.0.0.1", cores_[1], cores_[0], &out_));
    require(calls_.accept("127.0.0.1", cores_[0], cores_[1], &in_));
    for (void* const way : {out_, in_}) {
      for (bool done = false; !done;) require(calls_.test_comm(way, &done));
    }
  }
  ~SendReceiveCalls() {
    for (const int core : cores_) calls_.close(core);
  }
  void message(Buffers& buffers) {
    void *sent = nullptr, *received = nullptr;
    require(calls_.recv_tensor(runtime_.tensors[3], offset_of(buffers.to), buffers.to.size(), in_,
                               &received));
    require(calls_.send_tensor(runtime_.tensors[2], offset_of(buffers.from), buffers.from.size(),
                               out_, &sent));
    for (void* const request : {sent, received}) {
      std::size_t size = 0;
      for (bool done = false; !done;) require(calls_.test_request(request, &done, &size));
    }
    require(calls_.flush(cores_[1]));
  }

 private:
  const Runtime& runtime_;
  const d2d::NeuronLibrary::SendReceive& calls_;
  std::array<int, Runtime::kRanks> cores_{};
  void *out_ = nullptr, *in_ = nullptr;
};

/// Those of a transfer through host memory, and the copy that a wire between hosts makes.
class StagingCalls {
 public:
  explicit StagingCalls(const Runtime& runtime)
      : runtime_(runtime), sent_(1 << 20), came_(1 << 20) {}
  void message(Buffers& buffers) {
    const auto& calls = runtime_.library.told;
    const auto size = buffers.from.size();
    std::uint64_t sequence = 0;
    int result = 0;
    require(calls.read(sent_.data(), runtime_.tensors[2], offset_of(buffers.from), size, 2, 0,
                       &result, &sequence));
    until_done(sequence);
    std::memcpy(came_.data(), sent_.data(), size);
    require(calls.write(runtime_.tensors[3], came_.data(), offset_of(buffers.to), size, 3, 0,
                        &result, &sequence));
    until_done(sequence);
    require(result);
  }

 private:
  void until_done(std::uint64_t sequence) const {
    for (bool done = false; !done;) require(runtime_.library.is_completed(sequence, &done));
  }

  const Runtime& runtime_;
  std::vector<std::byte> sent_, came_;
};

/// Those of a transfer by a collective of two cores.
class CollectiveCalls {
 public:
  explicit CollectiveCalls(const Runtime& runtime) : runtime_(runtime) {
    for (std::uint32_t rank = 0; rank < Runtime::kRanks; ++rank) {
      const auto core = Runtime::kRanks + rank;
      require(runtime.library.collectives.global_init(core, core, Runtime::kCores));
      for (const std::size_t size : kSlots) {
        require(runtime.library.tensor_allocate(0, static_cast<int>(core), size, "",
                                                &slots_.at(rank).emplace_back(nullptr)));
      }
    }
  }
  void message(Buffers& buffers) {
    const std::size_t kind = buffers.from.size() <= kSlots[0] ? 0 : 2;
    copy(0, runtime_.tensors[2], offset_of(buffers.from), slots_[0][kind], 0, buffers.from.size());
    std::array<std::uint32_t, 2> members{2, 3};
    std::array<int, 2> results{};
    std::array<std::uint64_t, 2> sequences{};
    for (std::uint32_t rank = 0; rank < Runtime::kRanks; ++rank) {
      d2d::NeuronLibrary::Group& group = groups_.at(rank);
      group = {members.data(), rank, 2, 2 + rank, Runtime::kCores, 2 + rank};
      inputs_.at(rank) = {&slots_.at(rank)[kind], 1};
      outputs_.at(rank) = {&slots_.at(rank)[kind + 1], 1};
      void* prepared = nullptr;
      require(runtime_.library.collectives.prepare(&group, &inputs_.at(rank), &outputs_.at(rank), 3,
                                                   0xf, 0, &prepared));
      require(runtime_.library.told.schedule(&prepared, 0, &results.at(rank), &sequences.at(rank)));
    }
    for (bool done = false; !done;) {
      bool first = false, second = false;
      require(runtime_.library.is_completed(sequences[0], &first));
      require(runtime_.library.is_completed(sequences[1], &second));
      done = first && second;
    }
    copy(1, slots_[1][kind + 1], 0, runtime_.tensors[3], offset_of(buffers.to), buffers.to.size());
  }

 private:
  static constexpr std::array<std::size_t, 4> kSlots{512, 1024, 16 << 10, 32 << 10};

  void copy(std::uint32_t rank, d2d::NeuronLibrary::Tensor* from, std::uint64_t from_offset,
            d2d::NeuronLibrary::Tensor* to, std::uint64_t to_offset, std::size_t size) const {
    std::uint64_t sequence = 0;
    int result = 0;
    require(runtime_.library.told.copy(from, from_offset, to, to_offset, size, 2 + rank, 0, &result,
                                       &sequence));
    for (bool done = false; !done;) require(runtime_.library.is_completed(sequence, &done));
  }

  const Runtime& runtime_;
  std::array<std::vector<d2d::NeuronLibrary::Tensor*>, Runtime::kRanks> slots_{};
  std::array<d2d::NeuronLibrary::Group, Runtime::kRanks> groups_{};
  std::array<d2d::NeuronLibrary::TensorList, Runtime::kRanks> inputs_{}, outputs_{};
};

/// Compares transfers over wires with what they call, by turns.
template <class Calls>
void compare(Report& report, const std::string& path, const std::string& file,
             const std::function<std::unique_ptr<OverWires>(const Runtime&)>& make) {
  const Runtime runtime(file);
  const auto wires = make(runtime);
  Calls calls(runtime);
  for (const std::size_t size : {std::size_t{256}, std::size_t{16} << 10}) {
    const auto text = size < 1024 ? std::to_string(size) + "B" : std::to_string(size >> 10) + "KiB";
    Buffers buffers(size);
    const auto over_wires = [&] {
      return microseconds_each(kMessages, [&] { wires->message(buffers); });
    };
    const auto alone = [&] {
      return microseconds_each(kMessages, [&] { calls.message(buffers); });
    };
    const auto times = alternate(rounds(kSamples), over_wires, alone);
    std::vector<double> own;
    for (std::size_t i = 0; i < times.a.size(); ++i) own.push_back(times.a[i] - times.b[i]);
    const auto allocations = least_allocations(3, over_wires) - least_allocations(3, alone);
    SMP_REQUIRE(buffers.to == buffers.from, path, ": wrong bytes came");
    report.add(path + ".us." + text, median(times.a), "us", "a transfer, played runtime");
    report.add(path + ".calls_us." + text, median(times.b), "us", "the runtime's calls alone");
    report.add(path + ".own_us." + text, median(own), "us",
               "median of the differences; aim: at most 1.5");
    report.add(path + ".own_allocations." + text, allocations / kMessages, "1",
               "for each transfer, beyond those of the calls; aim: 0");
  }
}

std::unique_ptr<OverWires> by_send_receive(const Runtime& runtime) {
  std::vector<d2d::NeuronSendReceiveWire*> connecting;
  auto all = std::make_unique<OverWires>(runtime, [&](auto messages,
                                                      const d2d::NeuronPlaces& places, int rank) {
    auto wire = std::make_unique<d2d::NeuronSendReceiveWire>(
        std::move(messages),
        std::make_unique<d2d::NeuronSendReceive>(*runtime.runtime, RelativeCore(rank), 1), places);
    connecting.push_back(wire.get());
    return std::unique_ptr<d2d::Wire>(std::move(wire));
  });
  std::vector<d2d::NeuronAddress> cores;
  for (int rank = 0; rank < Runtime::kRanks; ++rank) {
    cores.push_back({"127.0.0.1", runtime.runtime->claim().absolute(RelativeCore(rank))});
  }
  for (auto* const wire : connecting) wire->connect(cores);
  return all;
}

std::unique_ptr<OverWires> by_collectives(const Runtime& runtime) {
  return std::make_unique<OverWires>(
      runtime, [&](auto messages, const d2d::NeuronPlaces& places, int rank) {
        auto gathers = std::make_unique<d2d::NeuronGathers>(*runtime.runtime, RelativeCore(rank),
                                                            1 << 20, 10 * base::kSecond);
        gathers->join(rank, Runtime::kCores);
        return std::unique_ptr<d2d::Wire>(std::make_unique<d2d::NeuronCollectiveWire>(
            std::move(messages), std::move(gathers), places));
      });
}

std::unique_ptr<OverWires> by_staging(const Runtime& runtime) {
  return std::make_unique<OverWires>(
      runtime, [&](auto messages, const d2d::NeuronPlaces& places, int rank) {
        return std::unique_ptr<d2d::Wire>(std::make_unique<d2d::NeuronStagingWire>(
            std::move(messages),
            std::make_unique<d2d::NeuronCopies>(*runtime.runtime, RelativeCore(rank)), places));
      });
}

}  // namespace

void report_neuron_paths(Report& report) {
  const auto file = played_file();
  if (!std::filesystem::exists(file)) {
    std::printf("neuron.*: not measured, %s is not built\n", file.c_str());
    return;
  }
  compare<CollectiveCalls>(report, "neuron.collectives", file, by_collectives);
  compare<SendReceiveCalls>(report, "neuron.send_receive", file, by_send_receive);
  compare<StagingCalls>(report, "neuron.staging", file, by_staging);
}

}  // namespace smp::perf::d2d_program
