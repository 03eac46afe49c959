// data/loading/pack_tokens.cpp: from documents to a shard, on several threads and in their order.
#include "base/check.h"
#include "data/documents/document_source.h"
#include "data/loading/ahead.h"
#include "data/loading/portion.h"
#include "data/loading/vocabulary.h"
#include "smp/data/token_shard.h"

namespace smp::data {
namespace {

class ShardPacker {
 public:
  ShardPacker(const std::string& path, const Vocabulary& vocabulary)
      : writer_(path, vocabulary.size, vocabulary.end_of_document) {}

  void append(const Portion& portion) {
    for (std::size_t number = 0; number < portion.documents.size(); ++number) {
      const auto& document = portion.documents[number];
      if (document.skipped) {
        ++result_.skipped;
        continue;
      }
      const auto tokens = portion.tokens(number, 0, document.end - document.begin);
      copied_.resize(static_cast<std::size_t>(tokens.size));
      tokens.copy_to(copied_.data());
      writer_.append(copied_);
    }
    if (portion.error) std::rethrow_exception(portion.error);
  }
  PackResult finish() {
    result_.shard = writer_.finish();
    return result_;
  }

 private:
  TokenShardWriter writer_;
  PackResult result_;
  std::vector<std::int32_t> copied_;
};

}  // namespace

PackResult pack_tokens(const Documents& documents,
                       const std::shared_ptr<const Tokenizer>& tokenizer, const std::string& path,
                       const PackOptions& options) {
  SMP_REQUIRE(options.threads >= 1 && options.threads <= 256, "threads is ", options.threads,
              "; 1 to 256 are possible");
  const auto& source = DocumentSource::of(documents);
  ShardPacker packer(path, common_vocabulary(source, tokenizer.get()));
  const DocumentOrder order(source.size(), /*shuffle=*/false, 0);
  const PortionReader reader(
      source, order,
      {.tokenizer = tokenizer.get(), .skip_damaged = options.skip_damaged, .epochs = 1});
  Ahead<Portion> portions(options.threads, 2 * options.threads + 1,
                          [&](std::int64_t number) { return reader.next({}, number); });
  while (const auto portion = portions.take().thing) packer.append(*portion);
  return packer.finish();
}

}  // namespace smp::data
