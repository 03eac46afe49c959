// Safetensors files: what is written is read, other programs' files are read, damage is noticed.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>

#include "base/files.h"
#include "checkpoint/checksum.h"
#include "checkpoint/safetensors_file.h"
#include "smp/checkpoint.h"
#include "support/damaged_files.h"
#include "support/full_disk.h"
#include "support/refusal.h"

namespace smp::checkpoints {
namespace safetensors_test {

using testing::HasSubstr;
using torch::Tensor;

class Safetensors : public testing::Test {
 protected:
  Safetensors() { std::filesystem::create_directories(folder_); }
  ~Safetensors() override { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& name = "x.safetensors") const { return folder_ + "/" + name; }
  /// A file with this header and data.
  std::string file_of(const std::string& header, const std::string& data) const {
    const std::uint64_t length = header.size();
    std::string bytes(reinterpret_cast<const char*>(&length), sizeof length);
    std::ofstream(path("made"), std::ios::binary) << bytes << header << data;
    return path("made");
  }
  std::string refusal_of(const std::string& header, const std::string& data = "") const {
    const auto made = file_of(header, data);
    return refusal([&] { load_safetensors(made); });
  }

 private:
  std::string folder_ = testing::TempDir() + "safetensors." + std::to_string(getpid()) + "." +
                        testing::UnitTest::GetInstance()->current_test_info()->name();
};

bool same(const Tensor& a, const Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() &&
         (a.numel() == 0 || std::memcmp(a.contiguous().const_data_ptr(),
                                        b.contiguous().const_data_ptr(), a.nbytes()) == 0);
}

bool same(const StateDict& a, const StateDict& b) {
  if (a.names() != b.names()) return false;
  for (const auto& [name, tensor] : a) {
    if (!same(tensor, b.at(name))) return false;
  }
  return true;
}

Tensor bytes_as(torch::Dtype dtype, std::vector<std::int64_t> sizes) {
  auto tensor = torch::empty(sizes, dtype);
  auto* data = static_cast<unsigned char*>(tensor.mutable_data_ptr());
  for (std::size_t i = 0; i < tensor.nbytes(); ++i) {
    data[i] = static_cast<unsigned char>(dtype == torch::kBool ? i % 2 : 37 * i + 11);
  }
  return tensor;
}

StateDict example() {
  return {{"a.weight", torch::randn({3, 5})},
          {"a.bias", torch::randn({5}, torch::kDouble)},
          {"flag", torch::tensor({true, false, true})},
          {"step", torch::tensor(7, torch::kLong)},
          {"empty", torch::empty({0, 4})},
          {"half", torch::randn({7}).to(torch::kHalf)}};
}

TEST_F(Safetensors, KeepsEveryDtypeOfTheFormat) {
  StateDict dict;
  int number = 0;
  for (const auto dtype : {at::kBool,
                           at::kByte,
                           at::kChar,
                           at::kUInt16,
                           at::kShort,
                           at::kUInt32,
                           at::kInt,
                           at::kUInt64,
                           at::kLong,
                           at::kHalf,
                           at::kBFloat16,
                           at::kFloat,
                           at::kDouble,
                           at::kComplexFloat,
                           at::kFloat8_e4m3fn,
                           at::kFloat8_e5m2,
                           at::kFloat8_e8m0fnu,
                           at::kFloat8_e4m3fnuz,
                           at::kFloat8_e5m2fnuz,
                           at::kFloat4_e2m1fn_x2}) {
    dict.insert("tensor " + std::to_string(number++), bytes_as(dtype, {3, 1, 5}));
  }
  save_safetensors(dict, path());
  EXPECT_TRUE(same(load_safetensors(path()), dict));
  EXPECT_THAT(refusal<UnsupportedError>([&] {
                save_safetensors({{"z", torch::zeros({2}, at::kComplexDouble)}}, path("no"));
              }),
              HasSubstr("tensor z: safetensors files have no elements of type ComplexDouble"));
  EXPECT_FALSE(std::filesystem::exists(path("no")));
}

TEST_F(Safetensors, KeepsShapesNamesMetadataAndStridedValues) {
  const auto base = torch::arange(24, torch::kFloat).reshape({2, 3, 4});
  StateDict dict{{"scalar", torch::tensor(2.5)},
                 {"none", torch::empty({0})},
                 {"transposed", base.transpose(0, 2)},
                 {"slice", base.slice(1, 1, 2)},
                 {"conj", torch::conj(torch::view_as_complex(torch::randn({3, 2})))},
                 {"name with \"quotes\", \\ and \xc3\xa4\n", torch::ones({1})}};
  dict.metadata = {{"note", "a \"b\"\n\xe2\x82\xac"}};
  save_safetensors(dict, path());
  const auto read = load_safetensors(path());
  EXPECT_EQ(read.names(), dict.names());
  for (const auto& [name, tensor] : dict) EXPECT_TRUE(torch::equal(read.at(name), tensor)) << name;
  EXPECT_EQ(read.metadata.at("note"), dict.metadata.at("note"));
  EXPECT_EQ(read.metadata.at("format"), "pt");
  EXPECT_EQ(read.metadata.size(), 2u);
}

/// Checksums are put into the text of a header, in which other texts may look like their place.
TEST_F(Safetensors, KeepsMetadataThatLooksLikeItsOwn) {
  StateDict dict{{"smp.xxh64", torch::ones({3})}};
  dict.metadata = {{"a\"smp.xxh64", "a text that is longer than sixteen digits"},
                   {"b,\"smp.xxh64\":\"", ",\"smp.xxh64\":\"0123456789abcdef"}};
  save_safetensors(dict, path());
  auto read = load_safetensors(path());
  EXPECT_TRUE(same(read, dict));
  read.metadata.erase("format");
  EXPECT_EQ(read.metadata, dict.metadata);
}

/// They share elements, and are not the same numbers.
TEST_F(Safetensors, WritesViewsThatConjugateOrNegateBesideTheirBase) {
  const auto base = torch::view_as_complex(torch::randn({3, 2}));
  const StateDict dict{{"a", base},
                       {"b", torch::conj(base)},
                       {"c", torch::imag(base)},
                       {"d", torch::imag(torch::conj(base))}};
  save_safetensors(dict, path());
  const auto read = load_safetensors(path());
  for (const auto& [name, tensor] : dict) EXPECT_TRUE(torch::equal(read.at(name), tensor)) << name;
}

TEST_F(Safetensors, WritesASharedTensorOnceAndGivesBackItsNames) {
  const auto table = torch::randn({100, 100});
  save_safetensors({{"shared.weight", table}, {"lm_head.weight", table}, {"view", table[0]}},
                   path());
  EXPECT_LT(std::filesystem::file_size(path()), 42'000u);
  const auto read = load_safetensors(path());
  EXPECT_TRUE(read.at("lm_head.weight").is_same(read.at("shared.weight")));
  EXPECT_TRUE(torch::equal(read.at("view"), table[0]));
}

TEST_F(Safetensors, AlignsEveryTensor) {
  save_safetensors({{"b", torch::ones({3}, torch::kBool)},
                    {"d", torch::ones({2}, torch::kDouble)},
                    {"h", torch::ones({5}, torch::kHalf)},
                    {"f", torch::ones({3})}},
                   path());
  const SafetensorsReader reader(path());
  for (const auto& tensor : reader.tensors()) {
    EXPECT_EQ(tensor.begin % c10::elementSize(tensor.info.dtype), 0u) << tensor.info.name;
  }
  const auto bytes = base::read_file(path());
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof length);
  EXPECT_EQ(length % 8, 0u);
}

TEST_F(Safetensors, ReadsWhatOthersWrite) {  // the example of the format's description, with spaces
  const std::string data("\x01\x02\x03\x04\x00\x00\x80\x3f", 8);
  const auto made = file_of(
      R"({ "__metadata__": {"by": "hand"}, "f": {"shape": [1], "data_offsets": [4, 8], "dtype": "F32"},
           "b": {"dtype":"U8","shape":[2,2],"data_offsets":[0,4]} }   )",
      data);
  const auto dict = load_safetensors(made);
  EXPECT_EQ(dict.names(), (std::vector<std::string>{"f", "b"}));
  EXPECT_EQ(dict.at("f").item<float>(), 1.0f);
  EXPECT_TRUE(torch::equal(dict.at("b"), torch::tensor({{1, 2}, {3, 4}}, torch::kByte)));
  EXPECT_EQ(dict.metadata.at("by"), "hand");
  EXPECT_TRUE(load_safetensors(file_of("{}", "")).empty());
}

std::string tensor_text(const std::string& type, const std::string& shape, int begin, int end) {
  return "{\"dtype\":\"" + type + "\",\"shape\":" + shape + ",\"data_offsets\":[" +
         std::to_string(begin) + "," + std::to_string(end) + "]}";
}

/// Spaces before the header, none behind it, no metadata or null, members of the future, and so
/// numbers at odd addresses: other readers take it all.
TEST_F(Safetensors, ReadsWhatOthersLetPass) {
  std::string data("\x01", 1);
  const std::vector<float> numbers{1.5f, -2, 3};
  data.append(reinterpret_cast<const char*>(numbers.data()), 12);
  const auto b = "\"b\":" + tensor_text("U8", "[1]", 0, 1);
  const auto f = "\"f\":" + tensor_text("F32", "[3]", 1, 13);
  auto f_and_more = f;
  f_and_more.insert(f.size() - 1,
                    R"(,"scale":{"block":[1,[2,{"x":null}]],"of":"f"},"z":-1.5,"y":[])");
  for (const auto& header :
       {"{" + b + "," + f + "}", "{" + f + "," + b + "}", " \n{" + b + "," + f + "} ",
        "{\"__metadata__\":null," + b + "," + f + "}", "{\"__metadata__\":{}," + b + "," + f + "}",
        "{" + b + "," + f_and_more + "}"}) {
    for (const int spaces : {0, 1, 2, 5}) {
      const auto dict = load_safetensors(file_of(header + std::string(spaces, ' '), data));
      EXPECT_EQ(dict.size(), 2u) << header;
      EXPECT_TRUE(torch::equal(dict.at("f"), torch::tensor({1.5f, -2.f, 3.f}))) << header;
      EXPECT_TRUE(torch::equal(dict.at("b"), torch::ones({1}, torch::kByte))) << header;
      EXPECT_TRUE(dict.metadata.empty()) << header;
    }
  }
}

/// Types of 4, 6 and 8 bits: those that LibTorch has are read, the others named, and theirs is the
/// only tensor that cannot be read.
TEST_F(Safetensors, ReadsSmallTypes) {
  const std::string data("\x12\x34\x56\x78\x9a\xbc\x7f\x80\x81\x00\x00\xc0\x3f", 13);
  const auto made = file_of("{\"f4\":" + tensor_text("F4", "[2,4]", 0, 4) +
                                ",\"scale\":" + tensor_text("F8_E8M0", "[2]", 4, 6) +
                                ",\"f6\":" + tensor_text("F6_E3M2", "[4]", 6, 9) +
                                ",\"f\":" + tensor_text("F32", "[1]", 9, 13) + "}",
                            data);
  EXPECT_THAT(refusal<UnsupportedError>([&] { load_safetensors(made); }),
              testing::AllOf(HasSubstr("f6: LibTorch has no dtype \"F6_E3M2\""),
                             testing::Not(HasSubstr("damaged")), HasSubstr("strict")));
  const auto dict = load_safetensors(made, /*strict=*/false);
  EXPECT_EQ(dict.names(), (std::vector<std::string>{"f4", "scale", "f"}));
  EXPECT_EQ(dict.at("f").item<float>(), 1.5f);
  EXPECT_EQ(dict.at("f4").scalar_type(), at::kFloat4_e2m1fn_x2);
  EXPECT_EQ(dict.at("f4").sizes(), at::IntArrayRef({2, 2}));
  EXPECT_EQ(dict.at("scale").scalar_type(), at::kFloat8_e8m0fnu);
  save_safetensors(dict, path());
  EXPECT_TRUE(same(load_safetensors(path()), dict));
  EXPECT_THAT(base::read_file(path()), HasSubstr(R"("dtype":"F4","shape":[2,4])"));

  const auto odd = file_of("{\"f4\":" + tensor_text("F4", "[2,1]", 0, 1) + "}", "x");
  EXPECT_THAT(refusal<UnsupportedError>([&] { load_safetensors(odd); }),
              HasSubstr("f4: LibTorch has numbers of 4 bits (F4) in pairs only"));
  EXPECT_THAT(refusal_of("{\"f4\":" + tensor_text("F4", "[3]", 0, 2) + "}", "xx"),
              HasSubstr("bytes 0 to 2 cannot hold F4 of shape [3]"));
  EXPECT_THAT(refusal_of("{\"f6\":" + tensor_text("F6_E2M3", "[4]", 0, 4) + "}", "xxxx"),
              HasSubstr("cannot hold F6_E2M3 of shape [4]"));
}

/// Equal content makes equal bytes, and a tensor's checksum is its own.
TEST_F(Safetensors, WritesEqualBytesForEqualContent) {
  torch::manual_seed(1);
  auto dict = example();
  for (int i = 0; i < 40; ++i) dict.metadata["key " + std::to_string(37 * i % 40)] = "value";
  save_safetensors(dict, path("first"));
  StateDict again;  // other tensors of equal values, metadata in another order
  for (const auto& [name, tensor] : dict) again.insert(name, tensor.clone());
  for (int i = 40; i-- > 0;) again.metadata["key " + std::to_string(i)] = "value";
  save_safetensors(again, path("second"));
  EXPECT_EQ(base::read_file(path("first")), base::read_file(path("second")));

  StateDict reversed;
  const auto names = dict.names();
  for (auto name = names.rbegin(); name != names.rend(); ++name) {
    reversed.insert(*name, dict.at(*name));
  }
  save_safetensors(reversed, path("third"));
  const auto sums_of = [&](const std::string& name) {
    const SafetensorsReader reader(path(name));
    std::map<std::string, std::uint64_t> sums;
    for (std::size_t i = 0; i < reader.tensors().size(); ++i) {
      sums[reader.tensors()[i].info.name] = reader.stored_checksum(i).value();
    }
    return sums;
  };
  EXPECT_EQ(sums_of("first"), sums_of("third"));
}

TEST_F(Safetensors, RefusesNamesAndMetadataThatWouldNotComeBack) {
  const auto one = torch::ones({1});
  for (const char* own : {"smp.aliases", "smp.xxh64"}) {
    StateDict dict{{"x", one}};
    dict.metadata[own] = "mine";
    EXPECT_THAT(refusal([&] { save_safetensors(dict, path("no")); }),
                testing::AllOf(HasSubstr(own), HasSubstr("give yours another name")));
  }
  EXPECT_THAT(refusal([&] {
                save_safetensors({{"x\xff", one}}, path("no"));
              }),
              HasSubstr("the name \"x\\xff\" is no UTF-8 text"));
  EXPECT_THAT(refusal([&] {
                save_safetensors({{"x", one}, {"y\xff", one}}, path("no"));
              }),
              HasSubstr("the name \"y\\xff\" is no UTF-8 text"));
  StateDict noted{{"x", one}};
  noted.metadata["note"] = "\xc3";
  EXPECT_THAT(refusal([&] { save_safetensors(noted, path("no")); }),
              HasSubstr("the metadata of \"note\" is no UTF-8 text"));
  EXPECT_THAT(refusal<UnsupportedError>([&] {
                save_safetensors({{"x", torch::ones({1}, torch::kMeta)}}, path("no"));
              }),
              HasSubstr("x is a meta tensor"));
  EXPECT_FALSE(std::filesystem::exists(path("no")));
}

TEST_F(Safetensors, SaysWhatOtherFilesAre) {
  std::ofstream(path("pickle"), std::ios::binary) << "PK\x03\x04 and so on, a zip archive";
  EXPECT_THAT(refusal([&] { load_safetensors(path("pickle")); }), HasSubstr("torch.save()"));
  std::ofstream(path("lfs")) << "version https://git-lfs.github.com/spec/v1\noid sha256:0\n";
  EXPECT_THAT(refusal([&] { load_safetensors(path("lfs")); }), HasSubstr("git lfs pull"));
}

/// A header and the data behind it, and what is said about them.
struct Damage {
  std::string header, data, text;
};

const std::string kFour(4, '\0');
const std::string kTensor = R"({"dtype":"F32","shape":[1],"data_offsets":[0,4]})";
std::string header_of(const std::string& tensor) { return R"({"x":)" + tensor + "}"; }

/// Headers that are no JSON, or whose values are no tensors.
std::vector<Damage> headers_without_tensors() {
  return {{"", kFour, "the length of its header would be 0"},
          {"[]", kFour, "does not begin with {"},
          {R"({"x":)", kFour, "no JSON"},
          {header_of(kTensor) + "x", kFour, "no JSON"},
          {header_of(kTensor.substr(0, 1) + "/**/" + kTensor.substr(1)), kFour, "no JSON"},
          {R"({"x":3})", kFour, "\"x\": a number where none belongs"},
          {R"({"x":[]})", kFour, "\"x\": a list in a wrong place"},
          {R"({"x":"y"})", kFour, "\"x\": a text where none belongs"},
          {R"({"x":null})", kFour, "\"x\": null where none belongs"}};
}

std::vector<Damage> tensors_with_wrong_members() {
  return {
      {header_of("{}"), kFour, "\"dtype\" is missing"},
      {header_of(R"({"dtype":"F32","data_offsets":[0,4]})"), kFour, "\"shape\" is missing"},
      {header_of(R"({"dtype":"F32","shape":[1]})"), kFour, "\"data_offsets\" is missing"},
      {header_of(R"({"dtype":"F32","shape":[1],"data_offsets":[0,4],"shape":[1]})"), kFour,
       "\"shape\" is there twice"},
      {header_of(R"({"dtype":"F32","shape":[1],"data_offsets":[0]})"), kFour, "needs 2 numbers"},
      {header_of(R"({"dtype":"F32","shape":[1],"data_offsets":[4,0]})"), kFour, "bytes 4 to 0"},
      {header_of(R"({"dtype":"F32","shape":[1.0],"data_offsets":[0,4]})"), kFour, "a fraction"},
      {header_of(R"({"dtype":"F32","shape":[-1],"data_offsets":[0,4]})"), kFour,
       "a negative number"},
      {header_of(R"({"dtype":"F32","shape":[[1]],"data_offsets":[0,4]})"), kFour,
       "a list in a wrong place"},
      {header_of(R"({"dtype":"F32","shape":[{}],"data_offsets":[0,4]})"), kFour, "an object"},
      {header_of(R"({"dtype":"F32","shape":[true],"data_offsets":[0,4]})"), kFour, "a truth value"},
      {header_of(R"({"dtype":["F32"],"shape":[1],"data_offsets":[0,4]})"), kFour,
       "a list in a wrong place"},
      {header_of(R"({"dtype":"F32","shape":"1","data_offsets":[0,4]})"), kFour,
       "a text where a list belongs"}};
}

/// Shapes and offsets that contradict each other, or the data.
std::vector<Damage> tensors_that_do_not_fit() {
  return {{header_of(R"({"dtype":"F32","shape":[2],"data_offsets":[0,4]})"), kFour,
           "cannot hold F32 of shape [2]"},
          {header_of(R"({"dtype":"F64","shape":[1],"data_offsets":[0,4]})"), kFour,
           "cannot hold F64 of shape [1]"},
          {header_of(R"({"dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,4]})"),
           kFour, "too large"},
          {header_of(R"({"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0]})"), "",
           "cannot hold"},
          {header_of(R"({"dtype":"F32","shape":[0,4611686018427387904,8],"data_offsets":[0,0]})"),
           "", "cannot hold"},
          {header_of(R"({"dtype":"F32","shape":[99999999999],"data_offsets":[0,399999999996]})"),
           kFour, "incomplete"},
          {header_of(kTensor), "", "incomplete"},
          {header_of(kTensor), "12345", "it has 5 bytes of data, and its header tells of 4"},
          {header_of(R"({"dtype":"F32","shape":[1],"data_offsets":[1,5]})"), "12345",
           "\"x\" starts at byte 1 of the data, where 0"}};
}

/// Two entries of one name or place, and metadata that is no map of texts.
std::vector<Damage> headers_with_wrong_entries() {
  return {
      {R"({"y":)" + kTensor + R"(,"x":)" + kTensor + R"(,"x":)" + kTensor + "}", kFour,
       "header: \"x\": is there twice"},
      {R"({"x":)" + kTensor + R"(,"y":)" + kTensor + "}", kFour, "tensors overlap"},
      {R"({"__metadata__":{"a":1},"x":)" + kTensor + "}", kFour, "a number where none belongs"},
      {R"({"__metadata__":{"a":"1","a":"2"},"x":)" + kTensor + "}", kFour, "\"a\" is there twice"},
      {R"({"__metadata__":{"a":{}},"x":)" + kTensor + "}", kFour, "an object"},
      {R"({"__metadata__":"a","x":)" + kTensor + "}", kFour, "a text where none belongs"}};
}

TEST_F(Safetensors, RefusesADamagedHeader) {
  EXPECT_EQ(refusal_of(header_of(kTensor), kFour), "accepted");
  for (const auto& damages : {headers_without_tensors(), tensors_with_wrong_members(),
                              tensors_that_do_not_fit(), headers_with_wrong_entries()}) {
    for (const auto& [header, data, text] : damages) {
      EXPECT_THAT(refusal_of(header, data), HasSubstr(text)) << header;
    }
  }
  const auto made =
      file_of(header_of(R"({"dtype":"F31","shape":[1],"data_offsets":[0,4]})"), kFour);
  EXPECT_THAT(refusal<UnsupportedError>([&] { load_safetensors(made); }),
              HasSubstr("LibTorch has no dtype \"F31\""));
  EXPECT_THAT(refusal_of(header_of(R"({"dtype":"BOOL","shape":[4],"data_offsets":[0,4]})"),
                         std::string("\x01\x02\x00\x01", 4)),
              HasSubstr("truth values other than 0 and 1"));
}

TEST_F(Safetensors, RefusesDeepNestingAndLengthsBeyondTheFile) {
  EXPECT_THAT(refusal_of("{\"x\":" + std::string(1'000'000, '[')), HasSubstr("a list in a wrong"));
  std::string text = "{";
  for (int i = 0; i < 100'000; ++i) text += "\"x\":{";  // of a member that is not known
  EXPECT_THAT(refusal_of(text), HasSubstr("its header is no JSON"));
  for (const std::uint64_t length :
       {std::uint64_t{100}, std::uint64_t{1} << 40, ~std::uint64_t{0}}) {
    std::string bytes(reinterpret_cast<const char*>(&length), sizeof length);
    std::ofstream(path(), std::ios::binary) << bytes << "{}";
    EXPECT_NE(refusal([&] { load_safetensors(path()); }), "accepted") << length;
  }
  EXPECT_THAT(refusal([&] { load_safetensors(path("nothing")); }), HasSubstr("No such file"));
  std::filesystem::remove(path());
  EXPECT_THAT(refusal([&] { load_safetensors(path(".")); }), HasSubstr("a folder with neither"));
}

TEST_F(Safetensors, NoticesDamageAnywhere) {
  torch::manual_seed(1);
  const auto dict = example();
  save_safetensors(dict, path());
  const auto good = base::read_file(path());
  std::mt19937 random(5);
  int refused = 0;
  int changed = 0;
  int unnoticed = 0;  // only where the entry with the checksums is lost as well
  const int files = damaged_files(10'000);
  for (int i = 0; i < files; ++i) {
    const int places = i % 4 == 0 ? 3 : 1;
    const auto bytes = damaged(good, random, places);
    changed += bytes != good;
    std::ofstream(path("damaged"), std::ios::binary | std::ios::trunc) << bytes;
    try {
      const bool is_same = same(load_safetensors(path("damaged")), dict);
      ASSERT_TRUE(is_same || places > 1) << "file " << i;
      unnoticed += !is_same;
      ASSERT_TRUE(is_same || bytes.find(kChecksumKey) == std::string::npos) << "file " << i;
    } catch (const Error&) {
      ++refused;
    }
  }
  EXPECT_GT(changed, files / 20 * 19);
  EXPECT_GT(refused, changed / 100 * 97) << "of " << changed;
  EXPECT_LT(unnoticed, files / 40);
}

TEST_F(Safetensors, KeepsTheOldFileWhenTheDiskIsFull) {
  const StateDict old{{"x", torch::ones({3})}};
  save_safetensors(old, path());
  std::string text;
  {
    const support::FullDisk full(10'000);
    text = refusal<ResourceError>([&] {
      save_safetensors({{"x", torch::ones({100'000})}}, path());
    });
  }
  EXPECT_THAT(text, HasSubstr("cannot write " + path() + ": File too large"));
  EXPECT_TRUE(same(load_safetensors(path()), old));
  const auto folder = std::filesystem::path(path()).parent_path();
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder), {}), 1) << "left behind";
  EXPECT_THAT(refusal<ResourceError>([&] { save_safetensors(old, path("no/where")); }),
              HasSubstr("No such file or directory"));
}

TEST(Checksum, IsXxh64) {  // published values
  const auto of = [](std::string_view text) { return checksum(text.data(), text.size()); };
  EXPECT_EQ(of(""), 0xef46db3751d8e999ull);
  EXPECT_EQ(of("a"), 0xd24ec4f1a98c6e5bull);
  EXPECT_EQ(of("abc"), 0x44bc2cf5ad770999ull);
  EXPECT_EQ(of("Nobody inspects the spammish repetition"), 0xfbcea83c8a378bf1ull);
}

TEST(Checksum, MayComeInParts) {
  std::string bytes(300, '\0');
  std::mt19937 random(3);
  for (auto& byte : bytes) byte = static_cast<char>(random());
  for (const std::size_t size : {0u, 1u, 31u, 32u, 33u, 64u, 95u, 300u}) {
    for (int round = 0; round < 20; ++round) {
      Checksum parts;
      for (std::size_t at = 0; at < size;) {
        const auto count = std::min<std::size_t>(size - at, random() % 70);
        parts.add(bytes.data() + at, count);
        at += count;
      }
      EXPECT_EQ(parts.value(), checksum(bytes.data(), size)) << size;
    }
  }
}

TEST(StateDict, IsOrderedAndRefusesWhatMakesNoSense) {
  StateDict dict{{"b", torch::ones({1})}, {"a", torch::ones({2})}, {"c", torch::ones({3})}};
  EXPECT_EQ(dict.names(), (std::vector<std::string>{"b", "a", "c"}));
  EXPECT_TRUE(dict.erase("a"));
  EXPECT_FALSE(dict.erase("a"));
  EXPECT_EQ(dict.at("c").size(0), 3);
  EXPECT_THAT(refusal([&] { dict.insert("c", torch::ones({1})); }), HasSubstr("there already"));
  EXPECT_THAT(refusal([&] { dict.insert("d", Tensor()); }), HasSubstr("undefined"));
  EXPECT_THAT(refusal([&] { dict.at("a"); }), HasSubstr("no tensor \"a\""));
}

}  // namespace safetensors_test
}  // namespace smp::checkpoints
