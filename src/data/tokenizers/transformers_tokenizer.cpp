// data/tokenizers/transformers_tokenizer.cpp: a model's pieces as the `tokenizer.json` of Hugging
// Face's tokenizers 0.23. SentencePiece joins the two neighbours that make the piece of the highest
// score; there, a list of pairs says which are joined first.
#include <algorithm>
#include <filesystem>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/check.h"
#include "base/files.h"
#include "base/text/utf8.h"
#include "config/json.h"
#include "data/tokenizers/sentencepiece_library.h"
#include "smp/data/sentencepiece.h"

namespace smp::data {
namespace {

using base::Json;

struct Piece {
  std::string text;
  std::int32_t token;
  float score;
  SmpSentencePieceKind kind;
};

std::vector<Piece> pieces_of(const SentencePieceModel& model) {
  const auto& calls = sentencepiece_calls();
  std::vector<Piece> pieces;
  for (std::int32_t token = 0; token < calls.vocab_size(model.get()); ++token) {
    Piece piece{{}, token, 0, kOtherPiece};
    piece.kind = calls.piece(model.get(), token, into(piece.text), &piece.score);
    pieces.push_back(std::move(piece));
  }
  return pieces;
}

// Every way to make a normal piece out of two, those of the highest score first.
Json merges_of(const std::vector<Piece>& pieces) {
  std::unordered_map<std::string_view, const Piece*> by_text;
  std::vector<const Piece*> normal;
  for (const auto& piece : pieces) {
    if (piece.kind != kNormalPiece) continue;
    by_text.emplace(piece.text, &piece);
    normal.push_back(&piece);
  }
  std::stable_sort(normal.begin(), normal.end(),
                   [](const Piece* a, const Piece* b) { return a->score > b->score; });
  auto merges = Json::array();
  for (const auto* const piece : normal) {
    const std::string_view text = piece->text;
    for (std::size_t cut = base::character_length(text); cut < text.size();
         cut += base::character_length(text.substr(cut))) {
      const auto left = text.substr(0, cut);
      const auto right = text.substr(cut);
      if (!by_text.contains(left) || !by_text.contains(right)) continue;
      merges.push_back(Json::array({std::string(left), std::string(right)}));
    }
  }
  return merges;
}

Json replaced(std::string_view what, std::string_view with) {
  return {{"type", "Replace"}, {"pattern", {{"String", what}}}, {"content", with}};
}

Json tokenizer_json(const std::vector<Piece>& pieces) {
  auto vocab = Json::object();
  auto special = Json::array();
  for (const auto& piece : pieces) {
    vocab.get_ref<Json::object_t&>().emplace_back(piece.text, piece.token);  // no look-up
    if (piece.kind != kOtherPiece) continue;
    special.push_back({{"id", piece.token},
                       {"content", piece.text},
                       {"single_word", false},
                       {"lstrip", false},
                       {"rstrip", false},
                       {"normalized", false},
                       {"special", true}});
  }
  Json model = {{"type", "BPE"},
                {"dropout", nullptr},
                {"unk_token", "<unk>"},
                {"continuing_subword_prefix", nullptr},
                {"end_of_word_suffix", nullptr},
                {"fuse_unk", true},
                {"byte_fallback", true},
                {"ignore_merges", false}};
  model["vocab"] = std::move(vocab);
  model["merges"] = merges_of(pieces);
  Json json = {{"version", "1.0"}, {"truncation", nullptr}, {"padding", nullptr}};
  json["added_tokens"] = std::move(special);
  json["normalizer"] = replaced(" ", kSpaceSign);
  json["pre_tokenizer"] = nullptr;
  json["post_processor"] = nullptr;
  json["decoder"] = {
      {"type", "Sequence"},
      {"decoders", Json::array({replaced(kSpaceSign, " "), Json{{"type", "ByteFallback"}},
                                Json{{"type", "Fuse"}}})}};
  json["model"] = std::move(model);
  return json;
}

// Special tokens are numbers only: "<s>" in a text is text.
Json tokenizer_config() {
  return {{"tokenizer_class", "PreTrainedTokenizerFast"},
          {"unk_token", "<unk>"},
          {"bos_token", "<s>"},
          {"eos_token", "</s>"},
          {"add_bos_token", false},
          {"add_eos_token", false},
          {"split_special_tokens", true},
          {"clean_up_tokenization_spaces", false}};
}

}  // namespace

void write_transformers_tokenizer(const std::string& model) {
  const auto opened = open_sentencepiece(model);
  SMP_REQUIRE_AS(UnsupportedError, encodes_words_alone(opened), model,
                 ": this model changes text, or is not of plain byte-pair encoding with tokens for "
                 "bytes; `transformers` reads such models in ways of its own. Train one with "
                 "train_sentencepiece()");
  const auto pieces = pieces_of(opened);
  const auto folder = std::filesystem::path(model).parent_path();
  base::write_file((folder / "tokenizer.json").string(), base::json_text(tokenizer_json(pieces)));
  base::write_file((folder / "tokenizer_config.json").string(),
                   base::json_text(tokenizer_config()));
}

}  // namespace smp::data
