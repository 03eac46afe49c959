// smp/data/sentencepiece.h: tokenizers of SentencePiece, such as Llama's. The library is loaded
// when it is first needed, out of a shared object of its own (libsmp_sentencepiece.so), so that its
// copy of protobuf meets nobody else's. A build without it has these functions all the same.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "smp/data/tokenizer.h"
#include "smp/detail/export.h"

namespace smp::data {

/// Returns the tokenizer of the SentencePiece model in the file `path` (`tokenizer.model`). Its
/// end_of_document() is the model's `</s>`. What it encodes is what SentencePiece encodes: the
/// model says how text is normalised, and whether a space goes before it.
/// @throws UsageError        the file cannot be read, is no such model, or has no `</s>`
/// @throws UnsupportedError  this build has no SentencePiece; says what to install
SMP_API std::shared_ptr<const Tokenizer> sentencepiece_tokenizer(const std::string& path);

/// True if sentencepiece_tokenizer() works in this build and on this machine.
SMP_API bool has_sentencepiece();

/// How train_sentencepiece() makes a model.
struct SentencePieceTraining {
  /// Text files, one sentence a line.
  std::vector<std::string> files;
  /// Where the model goes: a `tokenizer.model`.
  std::string model;
  /// Pieces in all, from 260 on: `<unk>`, `<s>` and `</s>` are 0 to 2, bytes 3 to 258.
  std::int64_t vocab_size = 1024;
  /// Share of the text's characters that get pieces; others become bytes.
  double character_coverage = 0.9995;
};

/// Trains a byte-pair encoding and writes it to `model`. It keeps text as it is, spaces included,
/// and falls back to bytes, so every text comes back from decode() exactly. The same files give the
/// same pieces on every machine.
/// @throws UsageError        a file cannot be read, or has too little text for so many pieces
/// @throws UnsupportedError  as sentencepiece_tokenizer()
/// @throws ResourceError     `model` cannot be written
SMP_API void train_sentencepiece(const SentencePieceTraining& training);

/// Writes `tokenizer.json` and `tokenizer_config.json` beside the SentencePiece model `model` of
/// train_sentencepiece(), so that `AutoTokenizer.from_pretrained` of Hugging Face's `transformers`
/// gives the same tokens for every text with its folder. Other models are refused, as far as they
/// change text or are not of byte-pair encoding with bytes: `transformers` has its own ways with
/// these.
/// @throws UsageError        the file cannot be read, or is no such model
/// @throws UnsupportedError  the model changes text, or this build has no SentencePiece
/// @throws ResourceError     a file cannot be written
SMP_API void write_transformers_tokenizer(const std::string& model);

}  // namespace smp::data
