// perf/start.cpp: what a program costs until its first step: building a model under
// delay_param_initialization beside building it, and loading a file on several ranks beside
// Python's safetensors in one process.
#include <ATen/ATen.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/check.h"
#include "base/memory/process_memory.h"
#include "checkpoint/safetensors_file.h"
#include "d2d/job/mpi_session.h"
#include "harness.h"
#include "program.h"
#include "python_peer.h"
#include "sleeping_stages.h"
#include "smp/smp.h"

namespace smp::perf::start {
namespace {

constexpr int kBlocks = 16;
constexpr double kFloat = 4;  // bytes

/// Blocks of linear layers.
struct Shape {
  int layers = 1;  ///< of a block
  std::int64_t width = 1;

  double modules() const { return kBlocks * layers; }
  double bytes() const { return modules() * kFloat * static_cast<double>(width * (width + 1)); }
};

/// A model of 10,000 modules.
Shape many_modules(std::int64_t width) { return {brief() ? 2 : 625, brief() ? 8 : width}; }
/// One whose file does not fit into a cache.
Shape large_file() { return {brief() ? 2 : 6, brief() ? 16 : 1024}; }

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(const Shape& shape) {
    for (int i = 0; i < shape.layers; ++i) {
      layers.push_back(register_module(std::to_string(i), nn::Linear(shape.width, shape.width)));
    }
  }
  at::Tensor forward(at::Tensor x) {
    for (auto& layer : layers) x = layer(x);
    return x;
  }
  std::vector<nn::Linear> layers;
};
SMP_MODULE(Block);

struct NetImpl : torch::nn::Module {
  explicit NetImpl(const Shape& shape) {
    for (int i = 0; i < kBlocks; ++i) {
      blocks.push_back(register_module(std::to_string(i), Block(shape)));
    }
  }
  at::Tensor forward(at::Tensor x) {
    for (auto& block : blocks) x = block(x);
    return x;
  }
  std::vector<Block> blocks;
};
SMP_MODULE(Net);

Net build_delayed(const Shape& shape) {
  const delay_param_initialization delay;
  return Net(shape);
}

/// Gives each rank the same number of blocks.
void place(DistributedModelBase& model) {
  model.set_partition("", 0);
  for (int i = 0; i < kBlocks; ++i) model.set_partition(std::to_string(i), i * size() / kBlocks);
  model.place();
}

double bytes_here(const DistributedModelBase& model) {
  double bytes = 0;
  for (const auto& [name, tensor] : model.local_named_parameters()) {
    bytes += static_cast<double>(tensor.nbytes());
  }
  return bytes;
}

/// Returns the most of `own` of all ranks.
double most_of_ranks(double own) {
  const auto all = all_gather(own);
  return *std::max_element(all.begin(), all.end());
}

/// Returns the most bytes of code and data that the process had while it ran `action`, beyond those
/// that it had before.
double peak_of(const std::function<void()>& action) {
  base::forget_peak();
  const auto before = base::resident_bytes();
  action();
  return static_cast<double>(base::peak_resident_bytes() - before);
}

// ---- delayed initialisation --------------------------------------------------------------------

/// On the first rank, while others wait.
double add_build(Report& report, std::int64_t width, int rounds) {
  const auto shape = many_modules(width);
  const auto timed = [&](const auto& build) {
    at::manual_seed(1);
    Net net{nullptr};
    return microseconds([&] { net = build(); }) / 1e3;
  };
  const auto times = alternate(
      rounds, [&] { return timed([&] { return build_delayed(shape); }); },
      [&] { return timed([&] { return Net(shape); }); });
  const auto name = base::concat("width", width);
  const auto note = base::concat(shape.modules(), " linear layers of ", width, " x ", width);
  report.add_samples("delayed." + name + ".build_ms", times.a, "ms", note);
  report.add_samples("plain." + name + ".build_ms", times.b, "ms", note);
  report.add("delayed." + name + ".build_over_plain", times.ratio(), "1", note);
  return times.ratio();
}

void measure_build(std::optional<Report>& report, int rounds) {
  if (report) {
    const double ratio = add_build(*report, 256, rounds);
    add_build(*report, 64, rounds);
    add_build(*report, 16, rounds);
    report->add("delayed.build_over_plain", ratio, "1",
                "10,000 linear layers of 256 x 256; aim: at most 1.0");
  }
  barrier();
}

void measure_peak(std::optional<Report>& report) {
  const auto shape = many_modules(256);
  double own = 0;
  const auto peak = peak_of([&] {
    at::manual_seed(1);
    DistributedModel model(build_delayed(shape));
    place(model);
    own = bytes_here(model);
  });
  const auto share = most_of_ranks(peak / shape.bytes());
  if (!report) return;
  report->add(base::concat("delayed.peak_over_whole.p", size()), share, "1",
              base::concat("built and placed: ", peak / 1e6, " MB of ", shape.bytes() / 1e6,
                           " on the first rank, which keeps ", own / 1e6,
                           size() == kBlocks ? "; aim: at most 0.1" : ""));
}

// ---- files -------------------------------------------------------------------------------------

/// On the first rank, while others wait.
void on_first_rank(const std::function<void()>& action) {
  if (rank() == 0) action();
  barrier();
}

/// Writes the model's file a tensor at a time: a model that was whole here would leave memory that
/// is used again.
void write_file(const Shape& shape, const std::string& path) {
  std::vector<checkpoints::TensorInfo> infos;
  for (int block = 0; block < kBlocks; ++block) {
    for (int layer = 0; layer < shape.layers; ++layer) {
      const auto name = base::concat(block, ".", layer);
      infos.push_back({name + ".weight", at::kFloat, {shape.width, shape.width}});
      infos.push_back({name + ".bias", at::kFloat, {shape.width}});
    }
  }
  checkpoints::SafetensorsWriter writer(path, infos, {});
  for (std::size_t i = 0; i < infos.size(); ++i) writer.write(i, at::randn(infos[i].sizes));
  writer.commit();
}

/// Throws unless this rank has what the file has.
void require_loaded(const DistributedModelBase& model, const std::string& path) {
  const auto dict = load_safetensors(path);
  for (const auto& [name, tensor] : model.local_named_parameters()) {
    SMP_REQUIRE(at::equal(tensor, dict.at(name)), name, " is not what the file has");
  }
}

/// Milliseconds of a load on all ranks.
double timed_load(DistributedModelBase& model, const std::string& path) {
  barrier();
  return microseconds([&] {
           load_safetensors(model, path);
           barrier();
         }) /
         1e3;
}

/// What the peer answers the first rank, while others wait.
double peers_load(PythonPeer* peer, int threads, const std::string& path) {
  const double ms =
      peer != nullptr ? 1e3 * peer->ask(base::concat("load ", threads, " ", path)) : 0;
  barrier();
  return ms;
}

void measure_loads(std::optional<Report>& report, PythonPeer* peer, DistributedModelBase& model,
                   const std::string& path, const std::string& name, int rounds) {
  const int cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  for (const int threads : std::set{1, cores}) {
    const auto times = alternate(
        rounds, [&] { return timed_load(model, path); },
        [&] { return peers_load(peer, threads, path); });
    if (!report) continue;
    const auto note =
        base::concat(large_file().bytes() / 1e6, " MB in ", 2 * large_file().modules(),
                     " tensors, on ", size(), " ranks of one thread");
    report->add_samples(name + ".ms", times.a, "ms", note);
    if (peer == nullptr) continue;
    const auto of = threads == 1 ? std::string() : base::concat(".threads", threads);
    report->add_samples(name + ".safetensors_python" + of + ".ms", times.b, "ms",
                        base::concat("load_model() in one process, threads: ", threads));
    report->add(name + ".time_over_safetensors_python" + of, times.ratio(), "1",
                threads == 1 && size() == 2 ? "each rank reads its part; aim: at most 0.5" : "");
  }
}

void measure_files(std::optional<Report>& report, PythonPeer* peer, const std::string& folder,
                   int rounds) {
  const auto shape = large_file();
  const auto own_file = folder + "/own.safetensors", peers_file = folder + "/peers.safetensors";
  on_first_rank([&] { write_file(shape, own_file); });
  std::unique_ptr<DistributedModel<Net>> model;
  double own = 1;
  const auto peak = peak_of([&] {
    at::manual_seed(1);
    model = std::make_unique<DistributedModel<Net>>(build_delayed(shape));
    place(*model);
    load_safetensors(*model, own_file);
    own = bytes_here(*model);
  });
  require_loaded(*model, own_file);
  const auto share = most_of_ranks(peak / own);
  if (report) {
    report->add("load.peak_over_own_part", share, "1",
                base::concat("built without values, placed and loaded; a rank keeps ", own / 1e6,
                             " MB; aim: at most 1.1"));
  }
  measure_loads(report, peer, *model, own_file, "load.own_file", rounds);
  on_first_rank([&] {
    if (peer != nullptr) peer->ask("save " + peers_file);
  });
  if (!std::filesystem::exists(peers_file)) return;
  measure_loads(report, peer, *model, peers_file, "load", rounds);
  require_loaded(*model, peers_file);
}

// ---- the program -------------------------------------------------------------------------------

/// A folder that all ranks know, and that is gone at the end.
class SharedFolder {
 public:
  SharedFolder() {
    on_first_rank([&] { std::filesystem::create_directories(path_); });
  }
  ~SharedFolder() {
    std::error_code error;
    if (rank() == 0) std::filesystem::remove_all(path_, error);
  }
  SharedFolder(const SharedFolder&) = delete;
  SharedFolder& operator=(const SharedFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  const std::string path_ =
      (std::filesystem::temp_directory_path() /
       base::concat("smp_perf_start.", all_gather(static_cast<std::int64_t>(getpid()))[0]))
          .string();
};

void run(int argc, char** argv) {
  std::string python = offered_python();
  int rounds = 7;
  CLI::App app("What a program costs until its first step", "smp perf start");
  app.footer("--ranks P starts P ranks; without it 2, which build and load, and 16, which build.");
  app.add_option("--python", python, "a Python with torch and safetensors");
  app.add_option("--rounds", rounds, "of each variant")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  if (!parse_options(app, argc, argv)) return;
  const d2d::MpiSession mpi;
  auto report = report_of_ranks(mpi.rank().value(), "start", Report::Earlier::kKept);
  const auto shape = large_file();
  std::unique_ptr<PythonPeer> peer;
  if (report && mpi.size() < kBlocks) {
    peer = start_python_peer(python, {"perf/start/load_model.py", std::to_string(kBlocks),
                                      std::to_string(shape.layers), std::to_string(shape.width)});
  }
  Config config;
  config.pipeline_parallel_degree = mpi.size();
  config.intra_op_threads = 1;
  config.plan_cache = "off";
  config.skip_tracing = true;
  config.auto_partition = false;
  config.default_partition = 0;
  in_session(argc, argv, config, [&] {
    if (size() < kBlocks) {
      const SharedFolder folder;
      measure_files(report, peer.get(), folder.path(), rounds);
      measure_build(report, rounds);
    }
    measure_peak(report);
  });
  if (report) report->finish();
}

const Program program{"start", run};

}  // namespace
}  // namespace smp::perf::start
