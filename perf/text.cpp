// perf/text.cpp: what a run of a Llama has beside its steps: text that is tokenised, shuffled and
// packed meanwhile; a large file of tokens that is opened; weights that are loaded; text that is
// generated. Beside Hugging Face's datasets, tokenizers, safetensors and transformers, in a Python
// of their own (perf/text/peer.py), with as many threads.
#include <ATen/ATen.h>
#include <torch/optim/sgd.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/files.h"
#include "config/json.h"
#include "data/shards/shard_format.h"
#include "harness.h"
#include "models/llama.h"
#include "program.h"
#include "python_peer.h"
#include "smp/data/data.h"
#include "smp/hf.h"
#include "smp/text/generate.h"

namespace smp::perf::text_program {
namespace {

using base::concat;

constexpr int kThreads = 2;  // that tokenise, on each side
constexpr std::int64_t kContext = 128;
constexpr std::int64_t kRows = 8;

/// A folder that is gone at the end.
class Folder {
 public:
  Folder() { std::filesystem::create_directories(path_); }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string path(const std::string& name = "") const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_ =
      std::filesystem::temp_directory_path() / concat("smp_perf_text.", ::getpid());
};

// ---- text --------------------------------------------------------------------------------------

std::vector<std::string> words_of(const std::string& path) {
  std::ifstream file(path);
  std::vector<std::string> words;
  for (std::string word; file >> word;) words.push_back(word);
  SMP_REQUIRE(!words.empty(), "perf text: ", path, " holds no text");
  return words;
}

/// Documents of words as frequent as in the sample's text, and one in twenty that nobody has seen:
/// both sides remember words.
void write_corpus(const std::string& path, int documents) {
  const auto words = words_of("samples/llama/text/train.txt");
  std::mt19937 dice(1);
  const auto made_up = [&] {
    std::string word(3 + dice() % 10, 'a');
    for (auto& letter : word) letter = static_cast<char>('a' + dice() % 26);
    return word;
  };
  std::string text;
  for (int i = 0; i < documents; ++i) {
    std::string line;
    for (auto left = 50 + dice() % 300; left > 0; --left) {
      line +=
          (line.empty() ? "" : " ") + (dice() % 20 == 0 ? made_up() : words[dice() % words.size()]);
    }
    text += base::json_text(base::Json{{"text", line}}) + "\n";
  }
  base::write_file(path, text);
}

data::TokenLoaderOptions loader_options(const Folder& folder, int threads, std::uint64_t seed) {
  data::TokenLoaderOptions options;
  options.tokenizer = data::sentencepiece_tokenizer(folder.path("tokenizer.model"));
  options.context = kContext;
  options.rows = kRows;
  options.threads = threads;
  options.seed = seed;
  return options;
}

/// A corpus and a tokenizer that both sides read.
void make_text(const Folder& folder) {
  write_corpus(folder.path("corpus.jsonl"), brief() ? 40 : 4000);
  data::train_sentencepiece({.files = {"samples/llama/text/train.txt"},
                             .model = folder.path("tokenizer.model"),
                             .vocab_size = brief() ? 400 : 2000});
  data::write_transformers_tokenizer(folder.path("tokenizer.model"));
}

/// Seconds until all batches of an epoch were made.
double own_epoch(const Folder& folder, const data::Documents& documents, std::uint64_t seed,
                 double& tokens) {
  const double seconds =
      microseconds([&] {
        data::TokenLoader loader(documents, loader_options(folder, kThreads, seed));
        while (loader.next()) {
        }
        tokens = static_cast<double>(loader.counters().tokens);
      }) /
      1e6;
  return seconds;
}

void compare_loaders(Report& report, PythonPeer* peer, const Folder& folder) {
  const auto documents = data::open_documents({folder.path("corpus.jsonl")});
  std::uint64_t seed = 0;
  double tokens = 0;
  std::vector<double> theirs, ours, ratios;
  if (peer != nullptr) peer->ask(concat("text ", folder.path(), " ", kContext));
  for (int round = 0; round < rounds(7); ++round) {
    ours.push_back(own_epoch(folder, documents, ++seed, tokens));
    if (peer == nullptr) continue;
    theirs.push_back(peer->ask(concat("epoch ", seed, " ", kRows)));
    const double others = peer->answer();
    SMP_REQUIRE(others == tokens, "perf text: the peer has ", others, " tokens, ours ", tokens);
    ratios.push_back(theirs.back() / ours.back());
  }
  const auto note = concat(tokens, " tokens of text, ", kThreads, " threads");
  report.add_samples("loader.epoch_s", ours, "s", note);
  if (peer == nullptr) return;
  report.add_samples("loader.hf_datasets.epoch_s", theirs, "s", note);
  report.add_samples("loader.tokens_over_hf_datasets", ratios, "1",
                     "tokens per second, tokenised, shuffled and packed, within a round; aim: at "
                     "least 1.5");
}

// ---- a training that reads ---------------------------------------------------------------------

struct Sizes {
  std::int64_t width, inner, heads, layers, vocabulary;
  std::string words() const {
    return concat(width, " ", inner, " ", heads, " ", layers, " ", vocabulary);
  }
  models::LlamaConfig config() const {
    models::LlamaConfig config;
    config.vocab_size = vocabulary;
    config.hidden_size = width;
    config.intermediate_size = inner;
    config.num_hidden_layers = layers;
    config.num_attention_heads = config.num_key_value_heads = heads;
    config.head_dim = width / heads;
    return config;
  }
};

void measure_stall(Report& report, const Folder& folder) {
  data::TokenLoader loader(data::open_documents({folder.path("corpus.jsonl")}),
                           loader_options(folder, 1, 1));
  const auto vocabulary = brief() ? 400 : 2000;
  models::Llama net(brief() ? Sizes{32, 48, 4, 2, vocabulary}.config()
                            : Sizes{256, 704, 8, 6, vocabulary}.config());
  torch::optim::SGD optimizer(net->parameters(), 0.01);
  constexpr int kWarmUpSteps = 2;
  double waited = 0, all = 0;
  for (int step = 0; step < kWarmUpSteps + rounds(20); ++step) {
    std::optional<data::Batch> batch;
    const double wait = microseconds([&] { batch = loader.next(); });
    SMP_REQUIRE(batch, "perf text: the corpus is too short");
    const double computed = microseconds([&] {
      optimizer.zero_grad();
      net->forward(batch->tokens).backward();
      optimizer.step();
    });
    if (step < kWarmUpSteps) continue;
    waited += wait;
    all += wait + computed;
  }
  report.add("loader.stall_over_step", waited / all, "1",
             concat("waiting for batches of ", kRows, " x ", kContext, " tokens, of steps of ",
                    all / 1e3 / rounds(20), " ms; aim: at most 0.001"));
}

// ---- files -------------------------------------------------------------------------------------

/// A shard whose 10 GB were never written: opening must not look at them.
void measure_opening(Report& report, const Folder& folder) {
  data::TokenShardInfo info;
  info.documents = 10'000'000;
  info.tokens = brief() ? 1'000'000'000 : 4'900'000'000;
  info.vocab_size = 32000;
  info.token_bytes = 2;
  const auto path = folder.path("large.tokens");
  base::write_file(path, data::encode_header(info));
  std::filesystem::resize_file(path, data::shard_layout(info).end);
  std::vector<double> milliseconds;
  for (int i = 0; i < rounds(50); ++i) {
    milliseconds.push_back(microseconds([&] {
                             const auto documents = data::open_documents({path});
                             SMP_REQUIRE(documents.size() == info.documents, "perf text: ", path);
                           }) /
                           1e3);
  }
  report.add_samples(
      "file.open_10gb_ms", milliseconds, "ms",
      concat(static_cast<double>(std::filesystem::file_size(path)) / 1e9, " GB; aim: at most 5"));
}

void compare_loads(Report& report, PythonPeer& peer, const Folder& folder) {
  const auto sizes = brief() ? Sizes{32, 48, 4, 2, 300} : Sizes{1024, 2816, 16, 4, 2000};
  const auto path = folder.path("large");
  peer.ask(concat("model ", path, " ", sizes.words()));
  models::Llama net(sizes.config());
  const auto times = alternate(
      rounds(11),
      [&] { return microseconds([&] { hf::load(*net, path, hf::Family::kLlama); }) / 1e3; },
      [&] { return 1e3 * peer.ask("load " + path); });
  const auto note =
      concat(static_cast<double>(std::filesystem::file_size(path + "/model.safetensors")) / 1e6,
             " MB that transformers wrote, one process of one thread");
  report.add_samples("file.load_ms", times.a, "ms", note);
  report.add_samples("file.safetensors_python.load_ms", times.b, "ms", note);
  report.add("file.load_over_safetensors_python", times.ratio(), "1", "aim: at most 0.7");
}

// ---- generated text ----------------------------------------------------------------------------

std::vector<std::vector<std::int64_t>> rows_of(const at::Tensor& tokens) {
  std::vector<std::vector<std::int64_t>> rows;
  for (const auto& row : tokens.contiguous().unbind()) {
    const auto* const first = row.data_ptr<std::int64_t>();
    rows.emplace_back(first, first + row.numel());
  }
  return rows;
}

void compare_generation(Report& report, PythonPeer& peer, const Folder& folder) {
  const auto sizes = brief() ? Sizes{32, 48, 4, 2, 300} : Sizes{256, 704, 8, 6, 2000};
  const std::int64_t rows = 4, prompt_tokens = 32, new_tokens = brief() ? 4 : 64;
  const auto path = folder.path("small");
  peer.ask(concat("model ", path, " ", sizes.words()));
  models::Llama net(sizes.config());
  hf::load(*net, path, hf::Family::kLlama);
  net->eval();
  torch::manual_seed(1);
  const auto prompt = at::randint(1, sizes.vocabulary, {rows, prompt_tokens});
  base::write_file(path + "/prompt.json", base::json_text(base::Json(rows_of(prompt))));
  at::Tensor text;
  const auto times = alternate(
      rounds(9),
      [&] {
        return microseconds([&] {
          text = generate(
              prompt,
              [&](const auto& tokens, const auto& place) { return net->decode(tokens, place); },
              {.max_new_tokens = new_tokens});
        });
      },
      [&] { return 1e6 * peer.ask(concat("generate ", path, " ", new_tokens)); });
  SMP_REQUIRE(base::read_json(path + "/generated.json") == base::Json(rows_of(text)),
              "perf text: transformers goes on with other tokens");
  const auto rate = [&](std::vector<double> microseconds) {
    for (auto& one : microseconds) one = 1e6 * static_cast<double>(rows * new_tokens) / one;
    return microseconds;
  };
  const auto note = concat(rows, " rows, ", prompt_tokens, " tokens go on with ", new_tokens,
                           ", the same ones; one thread");
  report.add_samples("generate.tokens_per_s", rate(times.a), "1/s", note);
  report.add_samples("generate.transformers.tokens_per_s", rate(times.b), "1/s", note);
  report.add("generate.tokens_over_transformers", 1 / times.ratio(), "1", "aim: at least 1.5");
}

struct Part {
  std::string name;
  std::function<void(Report&, PythonPeer*, const Folder&)> measure;
};

const std::vector<Part>& parts() {
  static const std::vector<Part> all{
      {"opening", [](auto& report, auto*, auto& folder) { measure_opening(report, folder); }},
      {"loader",
       [](auto& report, auto* peer, auto& folder) {
         if (!data::has_sentencepiece()) return;
         make_text(folder);
         measure_stall(report, folder);
         compare_loaders(report, peer, folder);
       }},
      {"generation",
       [](auto& report, auto* peer, auto& folder) {
         if (peer != nullptr) compare_generation(report, *peer, folder);
       }},
      {"files", [](auto& report, auto* peer, auto& folder) {
         if (peer != nullptr) compare_loads(report, *peer, folder);
       }}};
  return all;
}

void run(int argc, char** argv) {
  std::string python = offered_python(), wanted;
  std::vector<std::string> names;
  for (const auto& part : parts()) names.push_back(part.name);
  CLI::App app("What a run of a Llama has beside its steps", "smp perf text");
  app.add_option("--python", python, "a Python with datasets, tokenizers and transformers");
  app.add_option("--part", wanted, "to measure (default: all)")->check(CLI::IsMember(names));
  if (!parse_options(app, argc, argv)) return;
  at::set_num_threads(1);
  Report report("text", wanted.empty() ? Report::Earlier::kDropped : Report::Earlier::kKept);
  const Folder folder;
  const auto peer = start_python_peer(python, {"perf/text/peer.py", std::to_string(kThreads)});
  for (const auto& [name, measure] : parts()) {
    if (wanted.empty() || wanted == name) measure(report, peer.get(), folder);
  }
  report.finish();
}

const Program program{"text", run};

}  // namespace
}  // namespace smp::perf::text_program
