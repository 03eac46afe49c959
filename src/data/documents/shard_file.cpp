// data/documents/shard_file.cpp: files of tokens as files of documents.
#include <utility>

#include "base/check.h"
#include "data/documents/document_file.h"
#include "data/shards/token_shard.h"

namespace smp::data {
namespace {

class ShardFile final : public DocumentFile {
 public:
  explicit ShardFile(std::unique_ptr<const TokenSource> shard) : shard_(std::move(shard)) {}

  std::int64_t size() const override { return shard_->info().documents; }
  std::int64_t bytes() const override { return shard_->info().tokens * shard_->info().token_bytes; }
  const std::string& path() const override { return shard_->path(); }
  std::string place(std::int64_t number) const override {
    return base::concat(path(), ": document ", number);
  }
  const TokenSource* shard() const override { return shard_.get(); }
  std::string_view text(std::int64_t, std::string&) const override {
    SMP_ASSERT(false, "a shard has no text");
    return {};
  }

 private:
  std::unique_ptr<const TokenSource> shard_;
};

}  // namespace

DocumentFilePtr open_token_shard(const std::string& path) {
  return std::make_shared<const ShardFile>(std::make_unique<const TokenShard>(path));
}

DocumentFilePtr open_megatron_tokens(const std::string& path,
                                     const MegatronVocabulary& vocabulary) {
  return std::make_shared<const ShardFile>(
      std::make_unique<const MegatronTokens>(path, vocabulary));
}

}  // namespace smp::data
