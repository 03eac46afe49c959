// data/sentencepiece/interface.h: what libsmp_sentencepiece.so shows: C, so that nothing of either
// side's C++ libraries is seen by the other.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

/// Takes bytes or numbers that a call hands over; they are gone when it returns.
struct SmpSentencePieceSink {
  void (*put)(void* to, const void* values, std::size_t count);
  void* to;
};

/// Returns the next line to train with, and its length; nullptr: there are no more.
struct SmpSentencePieceLines {
  const char* (*next)(void* from, std::size_t* length);
  void* from;
};

/// What a token stands for.
enum SmpSentencePieceKind { kNormalPiece, kBytePiece, kOtherPiece };

/// Calls that return bool say in `error`, as text, why they failed. Nothing throws.
struct SmpSentencePieceCalls {
  /// Returns a model; nullptr: `error` says why.
  void* (*open)(const char* bytes, std::size_t size, SmpSentencePieceSink error);
  void (*close)(void* model);
  /// Hands 32-bit numbers to `tokens`.
  bool (*encode)(const void* model, const char* text, std::size_t size, SmpSentencePieceSink tokens,
                 SmpSentencePieceSink error);
  /// Hands bytes to `text`; all tokens must be below vocab_size().
  bool (*decode)(const void* model, const std::int32_t* tokens, std::size_t count,
                 SmpSentencePieceSink text, SmpSentencePieceSink error);
  std::int32_t (*vocab_size)(const void* model);
  /// Hands the bytes of token `token`, which is below vocab_size(), to `text`, and says what it is.
  SmpSentencePieceKind (*piece)(const void* model, std::int32_t token, SmpSentencePieceSink text,
                                float* score);
  /// The number of `</s>`; negative: the model has none.
  std::int32_t (*end_token)(const void* model);
  /// Hands a model's bytes to `model`.
  bool (*train)(std::int64_t vocab_size, double character_coverage, SmpSentencePieceLines lines,
                SmpSentencePieceSink model, SmpSentencePieceSink error);
};

/// The only name that the library shows.
const SmpSentencePieceCalls* smp_sentencepiece_calls();
}
