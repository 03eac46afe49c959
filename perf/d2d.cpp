// perf/d2d.cpp: how long bytes take from one rank to another of the same machine: our wires beside
// MPI, the ping-pongs of UCX and libfabric, and a copy within the process, in turns.
#include <ATen/ATen.h>
#include <mpi.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "d2d/channel/channel.h"
#include "d2d/job/job_wires.h"
#include "d2d/job/machine_wires.h"
#include "d2d/job/mpi_session.h"
#include "d2d/job/network_wires.h"
#include "d2d/lend/loans.h"
#include "d2d/neuron_cores.h"
#include "d2d/neuron_paths.h"
#include "d2d/wires/shm/host_shm_wire.h"
#include "harness.h"
#include "ping_pong_tools.h"
#include "program.h"

namespace smp::perf::d2d_program {
namespace {

using d2d::ByteBuffer;
using d2d::Wire;

constexpr int kRounds = 5;                 // of each kind and size, by turns
constexpr std::size_t kComparedAgain = 2;  // ways that send the same bytes as well: the first

enum class Bytes { kNew, kAgain };

int trips_of(std::size_t bytes) {
  const auto trips = std::clamp<std::size_t>((std::size_t{64} << 20) / (bytes + 1), 4, 2000);
  return rounds(static_cast<int>(trips));
}

/// Carries bytes there and back: the second rank returns what it gets. Both ranks call all of it.
class Path {
 public:
  virtual ~Path() = default;
  virtual std::string name() const = 0;
  /// Sends `bytes`, and receives as many into `place`; the other rank begins with receiving.
  virtual void round_trip(std::span<const std::byte> bytes, std::span<std::byte> place,
                          bool first) = 0;
};

class PlainMpi final : public Path {
 public:
  explicit PlainMpi(int peer) : peer_(peer) {}
  std::string name() const override { return "mpi_send"; }
  void round_trip(std::span<const std::byte> bytes, std::span<std::byte> place,
                  bool first) override {
    const auto count = static_cast<int>(bytes.size());
    const auto send = [&] { MPI_Send(bytes.data(), count, MPI_BYTE, peer_, 1, MPI_COMM_WORLD); };
    if (first) send();
    MPI_Recv(place.data(), count, MPI_BYTE, peer_, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    if (!first) send();
  }

 private:
  const int peer_;
};

/// The numbers of a way that its ranks do not leave in order are of no use.
void require_left(bool left, const std::string& name) {
  if (left) return;
  std::fprintf(stderr, "perf d2d: %s was not left within a minute\n", name.c_str());
  std::abort();
}

/// Over one of our wires.
class OverWire : public Path, protected d2d::WireHandler {
 public:
  OverWire(std::string name, std::unique_ptr<Wire> wire)
      : name_(std::move(name)), wire_(std::move(wire)), peer_(1 - wire_->rank().value()) {
    wire_->set_handler(this);
  }
  ~OverWire() override { require_left(wire_->close(60 * base::kSecond), name_); }
  std::string name() const override { return name_; }

 protected:
  Wire& wire() { return *wire_; }
  GlobalRank peer() const { return peer_; }
  void on_control(GlobalRank, ByteBuffer&&) override {}
  void on_sent(d2d::Token) override {}
  void on_received(d2d::Token) override {}

 private:
  const std::string name_;
  std::unique_ptr<Wire> wire_;
  const GlobalRank peer_;
};

/// Data: the receiver knows what will come.
class DataOverWire final : public OverWire {
 public:
  using OverWire::OverWire;
  void round_trip(std::span<const std::byte> bytes, std::span<std::byte> place,
                  bool first) override {
    const auto id = ++trips_;
    done_ = 0;
    wire().receive(place, peer(), id, kReceived);
    if (!first) until(kReceived);
    wire().send(bytes, peer(), id, kSent);
    until(kSent | kReceived);
  }

 private:
  enum : d2d::Token { kSent = 1, kReceived = 2 };
  void until(d2d::Token what) {
    while ((done_ & what) != what) wire().poll();
  }
  void on_sent(d2d::Token token) override { done_ |= token; }
  void on_received(d2d::Token token) override { done_ |= token; }

  d2d::TransferId trips_ = 0;
  d2d::Token done_ = 0;
};

/// Short messages.
class ControlOverWire final : public OverWire {
 public:
  using OverWire::OverWire;
  void round_trip(std::span<const std::byte> bytes, std::span<std::byte> place,
                  bool first) override {
    place_ = place;
    came_ = false;
    if (first) post(bytes);
    while (!came_) wire().poll();
    if (!first) post(bytes);
  }

 private:
  void post(std::span<const std::byte> bytes) {
    ByteBuffer buffer = wire().buffers().take();
    buffer.resize(bytes.size());
    std::memcpy(buffer.data(), bytes.data(), bytes.size());
    wire().post(peer(), std::move(buffer));
  }
  void on_control(GlobalRank, ByteBuffer&& bytes) override {
    std::memcpy(place_.data(), bytes.data(), bytes.size());
    wire().buffers().give(std::move(bytes));
    came_ = true;
  }

  std::span<std::byte> place_;
  bool came_ = false;
};

/// Whole tensors, in frames: lent or sent, as routes have it. Each rank has its own, and hands it
/// over when that of the other has come.
class TensorsOverChannel {
 public:
  explicit TensorsOverChannel(d2d::Routes routes)
      : channel_(std::move(routes)), peer_(1 - channel_.rank().value()) {
    channel_.set_receiver(d2d::Port::kServer, [this](GlobalRank, d2d::ArrivedFrame&& frame) {
      came_ = std::move(frame.tensors.front());
    });
  }
  ~TensorsOverChannel() {
    came_.reset();
    require_left(channel_.close(60 * base::kSecond), "the channel");
  }

  void round_trip(const at::Tensor& own, bool first) {
    if (first) hand_over(own);
    while (!came_.defined()) channel_.poll();
    if (!first) hand_over(own);
  }
  at::Tensor take() { return std::exchange(came_, {}); }
  /// Until what was handed over may be written to without a copy.
  void until_back() {
    auto* const loans = channel_.routes().loans(peer_);
    while ((loans != nullptr && loans->lent() > 0) || !channel_.drained()) channel_.poll();
  }

 private:
  void hand_over(const at::Tensor& own) { channel_.send(peer_, d2d::Port::kServer, {}, {}, own); }

  d2d::Channel channel_;
  const GlobalRank peer_;
  at::Tensor came_;
};

/// Microseconds one way, of each round trip; to read all of what came, too, if `reads`. Writing
/// elements that are kNew has left nothing else in the caches.
void measure(TensorsOverChannel& path, std::size_t size, bool first, bool reads, Bytes kind,
             std::vector<double>& samples) {
  auto own = at::zeros({static_cast<std::int64_t>(size / sizeof(float))});
  const int trips = trips_of(size);
  for (int i = -trips / 10 - 1; i < trips; ++i) {
    if (kind == Bytes::kNew) own.fill_(i);
    MPI_Barrier(MPI_COMM_WORLD);
    auto duration = microseconds([&] { path.round_trip(own, first); });
    auto came = path.take();
    const auto reading = microseconds([&] {
      const auto* const floats = came.const_data_ptr<float>();
      const float sum = reads ? came.max().item<float>() : floats[came.numel() - 1];
      const float expected = kind == Bytes::kNew ? static_cast<float>(i) : 0;
      SMP_REQUIRE(sum == expected, "wrong elements came");
    });
    if (reads) duration += 2 * reading;
    if (i >= 0) samples.push_back(duration / 2);
    MPI_Barrier(MPI_COMM_WORLD);
    came.reset();
    path.until_back();
  }
  MPI_Barrier(MPI_COMM_WORLD);
}

std::string text_of(std::size_t bytes) {
  if (bytes >= 1 << 20) return std::to_string(bytes >> 20) + "MiB";
  return bytes >= 1 << 10 ? std::to_string(bytes >> 10) + "KiB" : std::to_string(bytes) + "B";
}

/// Microseconds one way, of each round trip. Bytes that are kNew have just been written, all of
/// them, as by the operator that computed a tensor, and are in the caches of this core; the same
/// ones again and again, as ping-pong programs send them, are not.
void measure(Path& path, std::size_t size, bool first, Bytes kind, std::vector<double>& samples) {
  std::vector<std::byte> bytes(size, std::byte{1}), place(size);
  const int trips = trips_of(size);
  MPI_Barrier(MPI_COMM_WORLD);
  for (int i = -trips / 10 - 1; i < trips; ++i) {
    if (kind == Bytes::kNew) {
      std::fill(bytes.begin(), bytes.end(), static_cast<std::byte>(i));
      MPI_Barrier(MPI_COMM_WORLD);
    }
    const auto duration = microseconds([&] { path.round_trip(bytes, place, first); });
    SMP_REQUIRE(place.back() == bytes.back(), path.name(), ": wrong bytes came back");
    if (i >= 0) samples.push_back(duration / 2);
  }
  MPI_Barrier(MPI_COMM_WORLD);  // the last bytes of MPI need both ranks
}

double copy_us(std::size_t size) {
  std::vector<std::byte> from(size, std::byte{1}), to(size);
  std::vector<double> samples;
  for (int i = 0; i < trips_of(size); ++i) {
    from[0] = static_cast<std::byte>(i);
    samples.push_back(microseconds([&] { std::memcpy(to.data(), from.data(), size); }));
    SMP_REQUIRE(to[0] == from[0], "a copy went wrong");
  }
  return median(samples);
}

/// Both cores are the tools' meanwhile: the second rank sleeps.
void meet_asleep() {
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_Ibarrier(MPI_COMM_WORLD, &request);
  for (int all = 0; all == 0;) {
    MPI_Test(&request, &all, MPI_STATUS_IGNORE);
    if (all == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

/// Our shared memory is first, then plain MPI.
struct Contestants {
  std::vector<std::unique_ptr<Path>> paths;
  std::vector<PingPongTool> tools = {};
};

/// How often a tool sends there and back, which starts anew each time.
int tool_trips_of(std::size_t bytes) { return std::max(trips_of(bytes), rounds(20)); }

struct Compared {
  std::vector<std::vector<double>> paths, again, tools;
};

Compared in_turns(const Contestants& all, std::size_t size, bool first) {
  Compared samples{std::vector<std::vector<double>>(all.paths.size()),
                   std::vector<std::vector<double>>(kComparedAgain),
                   std::vector<std::vector<double>>(all.tools.size())};
  for (int round = 0; round < rounds(kRounds); ++round) {
    for (std::size_t i = 0; i < all.paths.size(); ++i) {
      measure(*all.paths[i], size, first, Bytes::kNew, samples.paths[i]);
      if (i >= kComparedAgain) continue;
      measure(*all.paths[i], size, first, Bytes::kAgain, samples.again[i]);
    }
    for (std::size_t i = 0; first && i < all.tools.size(); ++i) {
      const auto us = one_way_us(all.tools[i], size, tool_trips_of(size));
      if (us) samples.tools[i].push_back(*us);
    }
    meet_asleep();
  }
  return samples;
}

/// @return how long the best peer takes for bytes that have just been written
double compare(std::optional<Report>& report, const Contestants& all, std::size_t size,
               bool first) {
  const auto samples = in_turns(all, size, first);
  if (!report) return 0;
  const auto text = text_of(size);
  std::vector<double> paths, again;
  for (std::size_t i = 0; i < all.paths.size(); ++i) {
    paths.push_back(median(samples.paths[i]));
    report->add(all.paths[i]->name() + ".us." + text, paths.back(), "us", "one way, median");
    if (i >= kComparedAgain) continue;
    again.push_back(median(samples.again[i]));
    report->add(all.paths[i]->name() + ".again.us." + text, again.back(), "us",
                "the same bytes again and again");
  }
  double best_new = paths[1], best_again = again[1];
  for (std::size_t i = 0; i < all.tools.size(); ++i) {
    if (samples.tools[i].empty()) continue;  // it is not installed
    const auto us = median(samples.tools[i]);
    auto& best = all.tools[i].writes_anew ? best_new : best_again;
    best = std::min(best, us);
    report->add(all.tools[i].name + ".us." + text, us, "us", all.tools[i].note);
  }
  report->add("memcpy.us." + text, copy_us(size), "us", "once, within a process");
  const auto* const aim = size < (64 << 10) ? "aim: at most 1.1" : "";
  report->add("host_shm_over_mpi." + text, paths[0] / paths[1], "1", aim);
  report->add("host_shm_over_best_peer." + text, paths[0] / best_new, "1", aim);
  report->add("host_shm_over_best_peer.again." + text, again[0] / best_again, "1", aim);
  return best_new;
}

/// Tensors handed over beside the same tensors sent over our wires and as MPI sends bytes.
/// @param best_peer  what that takes for as many bytes
void compare_tensors(std::optional<Report>& report, const d2d::MpiSession& mpi, std::size_t size,
                     double best_peer) {
  const bool first = mpi.rank() == GlobalRank(0);
  TensorsOverChannel lent(fastest_routes(mpi, {.lend = true})),
      sent(fastest_routes(mpi, {.lend = false}));
  PlainMpi plain(first ? 1 : 0);
  std::vector<double> over, again, read, sent_over, sent_read, mpi_send;
  for (int round = 0; round < rounds(kRounds); ++round) {
    measure(lent, size, first, /*reads=*/false, Bytes::kNew, over);
    measure(lent, size, first, /*reads=*/false, Bytes::kAgain, again);
    measure(lent, size, first, /*reads=*/true, Bytes::kNew, read);
    measure(sent, size, first, /*reads=*/false, Bytes::kNew, sent_over);
    measure(sent, size, first, /*reads=*/true, Bytes::kNew, sent_read);
    measure(plain, size, first, Bytes::kNew, mpi_send);
  }
  if (!report) return;
  const auto text = text_of(size);
  const auto add = [&](const std::string& name, const std::vector<double>& samples,
                       const std::string& note) {
    report->add(name + ".us." + text, median(samples), "us", note);
  };
  const std::string aim = size >= 64 << 20 ? "; aim: at most 20" : "";
  add("lent_tensor", over, "handed over, one way" + aim);
  add("lent_tensor.again", again, "the same, not written before: with warm caches" + aim);
  add("sent_tensor", sent_over, "the same, copied");
  add("lent_tensor_and_read", read, "until the receiver has looked at every element");
  add("sent_tensor_and_read", sent_read, "the same, copied");
  report->add("lent_over_mpi." + text, median(over) / median(mpi_send), "1",
              size >= 16 << 20 ? "aim: at most .5" : "");
  report->add("lent_over_best_peer." + text, median(over) / best_peer, "1",
              size >= 16 << 20 ? "aim: at most .5" : "");
  report->add("lent_over_sent_and_read." + text, median(read) / median(sent_read), "1");
}

/// What perf d2d starts as a job of its own: prints "us: NUMBER".
void measure_plain_mpi(const d2d::MpiSession& mpi, std::size_t bytes) {
  const bool first = mpi.rank() == GlobalRank(0);
  PlainMpi plain(first ? 1 : 0);
  std::vector<double> samples;
  measure(plain, bytes, first, Bytes::kNew, samples);
  if (first) std::printf("us: %f\n", median(samples));
}

/// A wire of every kind that this machine has.
template <class OverWire>
Contestants contestants(const d2d::MpiSession& mpi, const std::string& kind) {
  Contestants all;
  const auto add = [&](const std::string& name, std::unique_ptr<Wire> wire) {
    all.paths.push_back(std::make_unique<OverWire>(name + kind, std::move(wire)));
  };
  add("host_shm", connect_host_shm(mpi));
  all.paths.push_back(std::make_unique<PlainMpi>(mpi.rank() == GlobalRank(0) ? 1 : 0));
  add("mpi_wire", mpi.connect_all());
  add("ucx_wire", connect_ucx(mpi));
  add("ofi_wire", connect_ofi(mpi));
  return all;
}

void compare_all(std::optional<Report>& report, const d2d::MpiSession& mpi,
                 const std::vector<PingPongTool>& tools) {
  const bool first = mpi.rank() == GlobalRank(0);
  {
    auto all = contestants<ControlOverWire>(mpi, ".control");
    all.tools = tools;
    for (const std::size_t size : {8u, 200u, 1024u, 4096u}) compare(report, all, size, first);
  }
  auto all = contestants<DataOverWire>(mpi, "");
  all.tools = tools;
  const std::vector<std::size_t> sizes{8 << 10, 64 << 10, 256 << 10, 1 << 20,
                                       4 << 20, 16 << 20, 64 << 20};
  const std::vector<std::size_t> few{8 << 10, 1 << 20};
  for (const auto size : brief() ? few : sizes) {
    const double best_peer = compare(report, all, size, first);
    if (size >= 64 << 10) compare_tensors(report, mpi, size, best_peer);
  }
}

void run(int argc, char** argv) {
  CLI::App app("Bytes from rank to rank: our shared memory beside MPI", "smp perf d2d");
  std::size_t plain = 0;
  bool neuron_alone = false;
  app.add_flag("--neuron", neuron_alone,
               "wires between Neuron cores alone, for perf/results/d2d_neuron.json");
  bool real_cores = false;
  CoresToMeasure which;
  app.add_flag("--neuron-cores", real_cores,
               "tensors between two Neuron cores of this machine alone, on each path that works");
  app.add_option("--cores", which.cores,
                 "logical cores that the two ranks share; 0: all that the runtime counts");
  app.add_option("--first-core", which.first_on_host,
                 "the host's number of the first of them, in a container that sees some only");
  app.add_option("--plain-mpi", plain, "only print what MPI takes for so many bytes");
  if (!parse_options(app, argc, argv)) return;
  const d2d::MpiSession mpi;
  SMP_REQUIRE(mpi.size() == 2, "perf d2d runs on 2 ranks, not on ", mpi.size());
  if (plain > 0) return measure_plain_mpi(mpi, plain);
  const char* const name = real_cores ? "d2d_neuron_cores" : neuron_alone ? "d2d_neuron" : "d2d";
  auto report = report_of_ranks(mpi.rank().value(), name);
  if (real_cores) {
    report_neuron_cores(mpi, which, report);
    if (report) report->finish();
    return;
  }
  if (!neuron_alone) {
    compare_all(report, mpi, ping_pong_tools(base::concat(argv[0], " --plain-mpi")));
  }
  if (report) report_neuron_paths(*report);
  meet_asleep();
  if (report) report->finish();
}

const Program program{"d2d", run};

}  // namespace
}  // namespace smp::perf::d2d_program
