// data/loading/loader_place.cpp: see the header.
#include "data/loading/loader_place.h"

#include "base/check.h"
#include "config/json.h"

namespace smp::data {
namespace {

constexpr int kStateVersion = 1;
constexpr const char* kName = "the state of a token loader";

std::int64_t count(const base::Json& state, const char* key) {
  const auto value = base::json_member<std::int64_t>(state, key, kName);
  SMP_REQUIRE(value >= 0, kName, ": \"", key, "\" is ", value);
  return value;
}

template <class T>
void require_same(const base::Json& state, const char* key, T own, const char* what) {
  const auto saved = base::json_member<T>(state, key, kName);
  SMP_REQUIRE(saved == own, kName, " cannot be loaded: it was saved with ", what, " (\"", key,
              "\" is ", saved, ", here it is ", own, ")");
}

}  // namespace

std::string place_text(const LoaderPlace& place, const LoaderIdentity& identity) {
  const auto& [position, counters] = place;
  base::Json state;
  state["token_loader"] = kStateVersion;
  state["epoch"] = position.epoch;
  state["index"] = position.index;
  state["offset"] = position.offset;
  state["steps"] = counters.steps;
  state["tokens"] = counters.tokens;
  state["documents"] = counters.documents;
  state["skipped"] = counters.skipped;
  state["shuffle"] = identity.shuffle;
  state["seed"] = identity.seed;
  state["of_documents"] = identity.documents;
  state["of_tokens"] = identity.tokens;
  return base::json_text(state);
}

LoaderPlace read_place(std::string_view text, const LoaderIdentity& identity,
                       std::int64_t documents) {
  const auto state = base::parse_json(text, kName);
  require_same(state, "token_loader", kStateVersion, "another version of this library");
  require_same(state, "of_documents", identity.documents,
               "other documents: files of other sizes, or in another order");
  require_same(state, "of_tokens", identity.tokens,
               "another tokenizer, or another token at the begin or end of documents");
  require_same(state, "shuffle", identity.shuffle, "another order of documents");
  require_same(state, "seed", identity.seed, "another seed");
  LoaderPlace place;
  place.position = {count(state, "epoch"), count(state, "index"), count(state, "offset")};
  SMP_REQUIRE(place.position.index < documents, kName, ": \"index\" is ", place.position.index,
              " of ", documents, " documents");
  place.counters = {.steps = count(state, "steps"),
                    .tokens = count(state, "tokens"),
                    .documents = count(state, "documents"),
                    .skipped = count(state, "skipped"),
                    .epoch = place.position.epoch};
  return place;
}

}  // namespace smp::data
