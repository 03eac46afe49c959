// perf/d2d/neuron_cores.cpp: see the header.
#include "d2d/neuron_cores.h"

#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "d2d/job/neuron_wires.h"
#include "d2d/wires/neuron/neuron_pool.h"
#include "d2d/wires/neuron/neuron_probe_memory.h"

namespace smp::perf::d2d_program {
namespace {

using d2d::NeuronPath;
using d2d::RelativeCore;

constexpr std::pair<NeuronPath, const char*> kPaths[] = {
    {NeuronPath::kCollectives, "collectives of two cores"},
    {NeuronPath::kSendReceive, "asynchronous send and receive"},
    {NeuronPath::kNetwork, "libfabric with Neuron memory"},
    {NeuronPath::kStaging, "host memory"},
};
constexpr std::size_t kLargest = 16 << 20;
constexpr base::Nanoseconds kPatience = 60 * base::kSecond;

std::vector<std::byte> some_bytes(std::size_t size) {
  std::mt19937 random(7);
  std::vector<std::byte> bytes(size);
  for (auto& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

/// What rank 0 sends comes back from rank 1.
class PingPong final : public d2d::WireHandler {
 public:
  PingPong(d2d::Wire& wire, d2d::NeuronProbeMemory& memory, std::size_t size)
      : wire_(wire),
        is_first_(wire.rank() == GlobalRank(0)),
        out_(memory.allocate(size)),
        in_(memory.allocate(size)) {
    wire_.set_handler(this);
  }
  ~PingPong() { wire_.set_handler(nullptr); }
  PingPong(const PingPong&) = delete;
  PingPong& operator=(const PingPong&) = delete;

  std::span<std::byte> out() const { return out_; }
  std::span<std::byte> in() const { return in_; }
  void there_and_back() {
    const GlobalRank other(is_first_ ? 1 : 0);
    ++round_;
    if (is_first_) wire_.send(out_, other, round_, kSent);
    wire_.receive(in_, other, round_, kReceived);
    until(received_);
    if (!is_first_) wire_.send(in_, other, round_, kSent);
    until(sent_);
  }

 private:
  static constexpr d2d::Token kSent = 1, kReceived = 2;
  void until(const std::uint64_t& done) {
    const base::SteadyClock clock;
    const auto deadline = clock.now() + kPatience;
    while (done < round_) {
      wire_.poll();
      SMP_REQUIRE(clock.now() < deadline, "rank ", wire_.rank(), ": ", wire_.name(),
                  ": a tensor did not come or leave within ", kPatience / base::kSecond,
                  " s; look at what the other rank says");
    }
  }
  void on_control(GlobalRank, d2d::ByteBuffer&&) override {}
  void on_sent(d2d::Token) override { ++sent_; }
  void on_received(d2d::Token) override { ++received_; }

  d2d::Wire& wire_;
  bool is_first_;
  std::span<std::byte> out_, in_;
  std::uint64_t round_ = 0, sent_ = 0, received_ = 0;
};

std::string size_text(std::size_t size) {
  if (size >= 1 << 20) return base::concat(size >> 20, "MiB");
  return size >= 1 << 10 ? base::concat(size >> 10, "KiB") : base::concat(size, "B");
}

void measure(d2d::Wire& wire, const d2d::NeuronEnd& end, d2d::NeuronPool& pool, std::size_t size,
             std::optional<Report>& report) {
  d2d::NeuronProbeMemory memory(end.runtime, pool);
  PingPong tensors(wire, memory, size);
  const auto bytes = some_bytes(size);
  memory.write(tensors.out(), bytes);
  std::vector<double> samples;
  for (int i = 0; i < rounds(size < 1 << 20 ? 201 : 21); ++i) {
    samples.push_back(microseconds([&] { tensors.there_and_back(); }) / 2);
  }
  SMP_REQUIRE(memory.read(tensors.in()) == bytes, "rank ", wire.rank(), ": ", wire.name(), ": of ",
              size, " bytes others came; report it, with the runtime's version");
  if (!report) return;
  const auto name = base::concat("neuron_cores.", wire.name());
  const double us = median(samples);
  report->add(base::concat(name, ".us.", size_text(size)), us, "us", "a transfer, half of two");
  report->add(base::concat(name, ".gbs.", size_text(size)), static_cast<double>(size) / us * 1e-3,
              "GB/s");
}

}  // namespace

void report_neuron_cores(const d2d::MpiSession& job, const CoresToMeasure& which,
                         std::optional<Report>& report) {
  auto& library = d2d::neuron();
  auto cores = static_cast<std::uint32_t>(which.cores);
  if (which.cores == 0) {
    const int status = library.get_total_vnc_count(&cores);
    SMP_REQUIRE(status == d2d::neuron_status::kSuccess,
                "counting cores: ", d2d::text_of_status(status));
  }
  d2d::NeuronRuntime runtime(library, job.rank(),
                             d2d::share_of_cores(static_cast<int>(cores), job.local_rank(),
                                                 job.local_size(), which.first_on_host));
  d2d::NeuronPool pool(runtime, RelativeCore(0), 2 * kLargest + (4 << 20));
  const d2d::NeuronEnd end{runtime, RelativeCore(0), pool,
                           [&] { return std::make_unique<d2d::NeuronProbeMemory>(runtime, pool); }};
  for (const auto& [path, what] : kPaths) {
    std::string problem;
    const auto wire = d2d::connect_neuron(job, end, path, problem);
    if (!wire) {
      if (report) std::printf("%s did not work: %s\n", what, problem.c_str());
      continue;
    }
    for (const std::size_t size :
         {std::size_t{256}, std::size_t{16} << 10, std::size_t{1} << 20, kLargest}) {
      if (brief() && size > 1 << 20) continue;
      measure(*wire, end, pool, size, report);
    }
    SMP_REQUIRE(wire->close(kPatience), wire->name(), ": the other rank did not leave");
  }
}

}  // namespace smp::perf::d2d_program
