// samples/llama/text.h: the text that the Llama reads, as tokens.
#pragma once

#include <smp/data/data.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace llama {

/// Files of documents, and what makes tokens of them.
struct TextOptions {
  std::vector<std::string> files;     ///< to train on
  std::vector<std::string> held_out;  ///< never trained on; may be none
  std::string tokenizer;              ///< a SentencePiece model; empty: bytes
};

/// Rows that one replica reads, and which one that is.
struct ShareOfText {
  std::int64_t rows = 1;
  std::int64_t context = 1;
  int replica = 0;
  int replicas = 1;
};

/// Opens text for training and for evaluation. Each data-parallel rank that feeds a model has one.
class Text {
 public:
  /// @throws smp::UsageError  naming the file and the place in it
  explicit Text(const TextOptions& options);

  /// Packed rows without an end, in a random order of documents that depends on `seed` and the
  /// epoch.
  smp::data::TokenLoader training(const ShareOfText& share, std::uint64_t seed) const;
  /// At most `batches` of this replica's batches of the held-out text, in its order.
  std::vector<smp::data::Batch> held_out(const ShareOfText& share, std::int64_t batches) const;

  const smp::data::Tokenizer& tokenizer() const { return *tokenizer_; }

 private:
  smp::data::Documents documents(const std::vector<std::string>& files) const;
  smp::data::TokenLoaderOptions options_for(const ShareOfText& share) const;

  TextOptions options_;
  std::shared_ptr<const smp::data::Tokenizer> tokenizer_;
};

/// The folder with the text that comes with this sample, and with the sizes of models.
std::string sample_folder();

}  // namespace llama
