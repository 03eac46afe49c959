// data/documents/shard_file.cpp: a token shard as a file of documents.
#include "base/check.h"
#include "data/documents/document_file.h"

namespace smp::data {
namespace {

class ShardFile final : public DocumentFile {
 public:
  explicit ShardFile(const std::string& path) : shard_(path) {}

  std::int64_t size() const override { return shard_.info().documents; }
  std::int64_t bytes() const override { return shard_.info().tokens * shard_.info().token_bytes; }
  const std::string& path() const override { return shard_.path(); }
  std::string place(std::int64_t number) const override {
    return base::concat(path(), ": document ", number);
  }
  const TokenShard* shard() const override { return &shard_; }
  std::string_view text(std::int64_t, std::string&) const override {
    SMP_ASSERT(false, "a shard has no text");
    return {};
  }

 private:
  TokenShard shard_;
};

}  // namespace

DocumentFilePtr open_token_shard(const std::string& path) {
  return std::make_shared<const ShardFile>(path);
}

}  // namespace smp::data
