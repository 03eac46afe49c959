// Which documents files hold, and what is said of damaged ones.
#include <gmock/gmock.h>

#include <fstream>
#include <vector>

#include "data/documents/document_source.h"
#include "data/files/scratch_folder.h"
#include "smp/data/token_shard.h"
#include "support/refusal.h"

namespace smp::data {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

std::string text_of(const Documents& documents, std::int64_t number) {
  const auto found = DocumentSource::of(documents).find(number);
  std::string storage;
  return std::string(found.file.text(found.number, storage));
}

std::vector<std::string> texts(const Documents& documents) {
  std::vector<std::string> all;
  for (std::int64_t i = 0; i < documents.size(); ++i) all.push_back(text_of(documents, i));
  return all;
}

TEST(OpenDocuments, KnowsFormatsByName) {
  const ScratchFolder folder;
  const auto lines = folder.write("a.txt", "one\n\ntwo\r\n");
  const auto json =
      folder.write("b.jsonl", "{\"id\": 1, \"text\": \"th\\u0072ee\\n\"}\n\n{\"text\":\"\"}");
  const auto documents = open_documents({lines, json, lines});
  EXPECT_THAT(texts(documents), ElementsAre("one", "two", "three\n", "", "one", "two"));
  EXPECT_THAT(documents.files(), ElementsAre(lines, json, lines));
  EXPECT_EQ(documents.place(1), lines + ":3");
  EXPECT_EQ(documents.place(3), json + ":3");
  EXPECT_THAT(texts(open_documents({lines}, {.format = Format::kWholeFile})),
              ElementsAre("one\n\ntwo\r\n"));
  EXPECT_THAT(texts(open_documents({folder.write("c", "{\"body\": \"x\"}")},
                                   {.format = Format::kJsonLines, .field = "body"})),
              ElementsAre("x"));
  const auto shard = folder.path("d.tokens");
  TokenShardWriter writer(shard, 10, 0);
  writer.append(std::vector<std::int32_t>{1});
  writer.finish();
  const auto mixed = open_documents({lines, shard});
  EXPECT_EQ(mixed.size(), 3);
  EXPECT_EQ(mixed.place(2), shard + ": document 0");
}

TEST(OpenDocuments, RefusesFilesWithoutDocuments) {
  const ScratchFolder folder;
  EXPECT_THAT(refusal([] { open_documents({}); }), HasSubstr("no files"));
  EXPECT_THAT(refusal([&] { open_documents({folder.path("none")}); }), HasSubstr("No such file"));
  EXPECT_THAT(refusal([&] { open_documents({folder.write("empty.txt", "\n \n")}); }),
              HasSubstr("empty.txt: holds no documents"));
  EXPECT_THAT(refusal([&] { open_documents({folder.path("")}); }), HasSubstr("state.json"));
  EXPECT_THAT(refusal([&] { open_documents({folder.write("a.tokens", "text")}); }),
              HasSubstr("is no token shard"));
}

TEST(OpenDocuments, NamesWhereALineIsNoJson) {
  const ScratchFolder folder;
  for (const auto& [line, said] : std::vector<std::pair<std::string, std::string>>{
           {"no json", "column 2"},
           {"{\"text\": \"cut", "column"},
           {"{\"text\": 5}", "\"text\" is 5, expected a text"},
           {"{\"other\": \"x\"}", "\"text\" is missing"},
           {"[\"text\"]", "\"text\" is missing"},
           {"{\"text\": \"a\"} {\"text\": \"b\"}", "column 15"},
           {"{\"text\": \"a\", \"text\": \"b\"}", "given twice"},
           {"{\"text\": \"\\ud800\"}", "column"},
           {std::string(100, '[') + "\"text\"", "nested more than"}}) {
    const auto path = folder.write("some.jsonl", "{\"text\": \"good\"}\n\n" + line + "\n");
    const auto documents = open_documents({path});
    EXPECT_THAT(refusal([&] { text_of(documents, 1); }),
                AllOf(HasSubstr("some.jsonl:3: "), HasSubstr(said), HasSubstr("skip_damaged")));
  }
}

TEST(OpenDocuments, NamesTheByteThatIsNoUtf8) {
  const ScratchFolder folder;
  for (const std::string bad : {"\xff", "\xc3", "\xed\xa0\x80", "\xc0\x80"}) {
    const auto content = "good\nabc" + bad + "d\n";
    const auto lines = open_documents({folder.write("some.txt", content)});
    EXPECT_THAT(refusal([&] { text_of(lines, 1); }),
                AllOf(HasSubstr("some.txt:2: byte 8 of the file, 0x"), HasSubstr("is no UTF-8")));
    const auto whole = open_documents({folder.path("some.txt")}, {.format = Format::kWholeFile});
    EXPECT_THAT(refusal([&] { text_of(whole, 0); }), HasSubstr("some.txt: byte 8 of the file"));
    const auto json = open_documents({folder.write("some.jsonl", "{\"text\": \"" + bad + "\"}")});
    EXPECT_THAT(refusal([&] { text_of(json, 0); }), HasSubstr("some.jsonl:1: byte 10 of the file"));
  }
}

}  // namespace
}  // namespace smp::data
