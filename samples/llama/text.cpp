// samples/llama/text.cpp: see the header.
#include "text.h"

#include <utility>

namespace llama {
namespace {

namespace data = smp::data;

}  // namespace

Text::Text(const TextOptions& options)
    : options_(options),
      tokenizer_(options.tokenizer.empty() ? data::bytes_tokenizer()
                                           : data::sentencepiece_tokenizer(options.tokenizer)) {}

data::Documents Text::documents(const std::vector<std::string>& files) const {
  return data::open_documents(files, {.vocab_size = tokenizer_->vocab_size(),
                                      .end_of_document = tokenizer_->end_of_document()});
}

data::TokenLoaderOptions Text::options_for(const ShareOfText& share) const {
  data::TokenLoaderOptions options;
  options.tokenizer = tokenizer_;
  options.context = share.context;
  options.rows = share.rows;
  options.replica = share.replica;
  options.replicas = share.replicas;
  return options;
}

data::TokenLoader Text::training(const ShareOfText& share, std::uint64_t seed) const {
  auto options = options_for(share);
  options.seed = seed;
  options.epochs = 0;
  return {documents(options_.files), std::move(options)};
}

std::vector<data::Batch> Text::held_out(const ShareOfText& share, std::int64_t batches) const {
  std::vector<data::Batch> read;
  if (options_.held_out.empty()) return read;
  auto options = options_for(share);
  options.shuffle = false;
  options.threads = 0;
  data::TokenLoader loader(documents(options_.held_out), std::move(options));
  while (std::ssize(read) < batches) {
    auto batch = loader.next();
    if (!batch) break;
    read.push_back(std::move(*batch));
  }
  return read;
}

std::string sample_folder() { return LLAMA_FOLDER; }

}  // namespace llama
