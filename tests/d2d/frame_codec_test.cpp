// Control buffers: what is written is read again, and nothing malformed does harm.
#include "d2d/frame_codec.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <cstring>
#include <random>

#include "smp/error.h"

namespace smp::d2d {
namespace {

using Bytes = std::vector<std::byte>;

constexpr FrameLimits kTightLimits{.tensor_bytes = 1 << 20};

Frame sample_frame() {
  return {"a header",
          {at::arange(5), at::Tensor(), at::ones({3000}), at::empty({0, 7}), at::full({}, 2.5),
           at::ones({40, 50}, at::kHalf), at::ones({100}, at::kBool)}};
}

Bytes encoded(const Frame& frame, std::vector<DataTensor>* data_out = nullptr) {
  FrameCodec codec;
  ByteBuffer control;
  std::vector<DataTensor> data;
  std::uint64_t next_transfer = 10;
  codec.encode(frame, next_transfer, control, data);
  if (data_out != nullptr) *data_out = data;
  return {control.span().begin(), control.span().end()};
}

// Decodes from a buffer of its own, so that a read past the end is seen by a memory checker.
// True if the bytes were accepted; anything but InternalError fails the test.
bool accepts(const Bytes& bytes) {
  FrameCodec codec(kTightLimits);
  const auto exact = std::make_unique_for_overwrite<std::byte[]>(bytes.size());
  if (!bytes.empty()) std::memcpy(exact.get(), bytes.data(), bytes.size());
  std::vector<DataTensor> data;
  try {
    const Frame frame = codec.decode({exact.get(), bytes.size()}, data);
    std::size_t total = 0;
    for (const DataTensor& tensor : data) total += tensor.tensor.nbytes();
    EXPECT_LE(total, kTightLimits.tensor_bytes);
    return true;
  } catch (const InternalError&) {
    return false;
  }
}

TEST(FrameCodec, PutsSmallTensorsIntoTheControlBuffer) {
  const Frame sent = sample_frame();
  FrameCodec codec;
  std::vector<DataTensor> data;
  const Frame read = codec.decode(encoded(sent), data);
  EXPECT_EQ(read.header, sent.header);
  ASSERT_EQ(read.tensors.size(), sent.tensors.size());
  EXPECT_FALSE(read.tensors[1].defined());
  for (int i : {0, 3, 4, 5, 6}) EXPECT_TRUE(at::equal(read.tensors[i], sent.tensors[i])) << i;
  EXPECT_EQ(read.tensors[2].sizes(), sent.tensors[2].sizes());
}

TEST(FrameCodec, ListsLargeTensorsOnBothSides) {
  const Frame sent{"", {at::ones({3000}), at::ones({2}), at::ones({64, 64})}};
  std::vector<DataTensor> sending;
  const Bytes control = encoded(sent, &sending);
  FrameCodec codec;
  std::vector<DataTensor> receiving;
  const Frame read = codec.decode(control, receiving);
  ASSERT_EQ(sending.size(), 2u);
  ASSERT_EQ(receiving.size(), 2u);
  for (int i : {0, 1}) {
    EXPECT_EQ(sending[i].index, receiving[i].index);
    EXPECT_EQ(sending[i].transfer, 10u + i);
    EXPECT_EQ(receiving[i].transfer, 10u + i);
    EXPECT_TRUE(receiving[i].tensor.is_same(read.tensors[receiving[i].index]));
  }
  EXPECT_TRUE(sending[0].tensor.is_same(sent.tensors[0])) << "sent without a copy";
}

TEST(FrameCodec, RemembersNothingOfTheFrameBefore) {
  FrameCodec codec;
  ByteBuffer control;
  std::vector<DataTensor> data;
  std::uint64_t next_transfer = 0;
  codec.encode(sample_frame(), next_transfer, control, data);
  codec.encode(Frame{"only a header", {}}, next_transfer, control, data);
  EXPECT_THAT(data, testing::IsEmpty());
  const Frame read = codec.decode(control.span(), data);
  EXPECT_EQ(read.header, "only a header");
  EXPECT_THAT(read.tensors, testing::IsEmpty());
}

TEST(FrameCodec, CanBeUsedAgainAfterAnError) {
  FrameCodec codec;
  ByteBuffer control;
  std::vector<DataTensor> data;
  std::uint64_t next_transfer = 0;
  const Frame bad{"", {at::ones({1}), at::ones({2, 2}).to_sparse()}};
  EXPECT_THROW(codec.encode(bad, next_transfer, control, data), UnsupportedError);
  EXPECT_THROW(codec.decode({}, data), InternalError);
  codec.encode(sample_frame(), next_transfer, control, data);
  EXPECT_EQ(codec.decode(control.span(), data).tensors.size(), sample_frame().tensors.size());
}

TEST(FrameCodec, RefusesABufferCutAnywhere) {
  const Bytes whole = encoded(sample_frame());
  EXPECT_TRUE(accepts(whole));
  for (std::size_t size = 0; size < whole.size(); ++size) {
    EXPECT_FALSE(accepts(Bytes(whole.begin(), whole.begin() + size))) << size;
  }
}

TEST(FrameCodec, RefusesBytesBehindTheEnd) {
  Bytes longer = encoded(sample_frame());
  longer.push_back({});
  EXPECT_FALSE(accepts(longer));
}

TEST(FrameCodec, SurvivesEveryFlippedBitOutsideTheElements) {
  const Bytes whole =
      encoded({"h", {at::ones({2}), at::Tensor(), at::ones({30, 40}), at::ones({0})}});
  for (std::size_t bit = 0; bit < whole.size() * 8; ++bit) {
    Bytes flipped = whole;
    flipped[bit / 8] ^= std::byte{1} << (bit % 8);
    accepts(flipped);
  }
}

TEST(FrameCodec, SurvivesRandomDamage) {
  const Bytes whole = encoded(sample_frame());
  std::mt19937_64 random(3);
  int accepted = 0;
  for (int round = 0; round < 20'000; ++round) {
    Bytes damaged = whole;
    const std::size_t reach = round % 2 ? damaged.size() : 120;  // prefix, stubs and header
    for (std::uint64_t i = random() % 6 + 1; i > 0; --i) {
      damaged[random() % reach] = static_cast<std::byte>(random());
    }
    accepted += accepts(damaged);
  }
  EXPECT_LT(accepted, 20'000);
}

TEST(FrameCodec, RefusesNoise) {
  std::mt19937_64 random(4);
  for (int round = 0; round < 2'000; ++round) {
    Bytes noise(random() % 300);
    for (std::byte& byte : noise) byte = static_cast<std::byte>(random());
    EXPECT_FALSE(accepts(noise));
  }
}

TEST(FrameCodec, RefusesTensorsBeyondTheLimit) {
  const auto elements = static_cast<std::int64_t>(kTightLimits.tensor_bytes / 4);
  EXPECT_TRUE(accepts(encoded({"", {at::ones({elements})}})));
  EXPECT_FALSE(accepts(encoded({"", {at::ones({elements + 1})}})));
  EXPECT_FALSE(accepts(encoded({"", {at::ones({elements}), at::ones({elements})}}))) << "in sum";
}

}  // namespace
}  // namespace smp::d2d
