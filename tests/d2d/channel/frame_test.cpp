// Control buffers: what is written is read again, and nothing malformed does harm.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>

#include "base/machine/home_device.h"
#include "d2d/channel/frame_decoder.h"
#include "d2d/channel/frame_encoder.h"
#include "smp/error.h"
#include "support/refusal.h"

namespace smp::d2d {
namespace {

using CodedBytes = std::vector<std::byte>;

constexpr FrameLimits kTightLimits{.tensor_bytes = 1 << 20};
constexpr std::uint8_t kWire = 3;

struct SampleFrame {
  std::string header;
  std::string body;
  std::vector<at::Tensor> tensors;
  Port port = Port::kServer;
};

SampleFrame sample_frame() {
  return {"head",
          "a body",
          {at::arange(5), at::Tensor(), at::ones({3000}), at::empty({0, 7}), at::full({}, 2.5),
           at::ones({40, 50}, at::kHalf), at::ones({100}, at::kBool)}};
}

CodedBytes encoded(const SampleFrame& frame, std::vector<DataTensor>* data_out = nullptr) {
  ByteBuffer control;
  // What an earlier frame left in the buffer must not show.
  control.resize(5000);
  std::memset(control.data(), 0xee, control.size());
  std::vector<DataTensor> data;
  TransferId next_transfer = 10;
  encode_frame({frame.port, std::as_bytes(std::span(frame.header)), frame.body, frame.tensors},
               {kWire, kNoWire, kNoWire}, next_transfer, control, data);
  EXPECT_EQ(next_transfer, 10 + data.size());
  if (data_out != nullptr) *data_out = data;
  return {control.span().begin(), control.span().end()};
}

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// The bytes that a sender of exactly this frame would have written.
CodedBytes encoded_again(const ReadFrame& frame, const std::vector<DataTensor>& data) {
  CodedBytes bytes =
      encoded({text_of(frame.header), text_of(frame.body), frame.tensors, frame.port});
  for (const DataTensor& tensor : data) {
    std::byte* const stub = bytes.data() + 32 + 16 * tensor.index;
    std::memcpy(stub, &tensor.transfer, sizeof tensor.transfer);
    stub[11] = static_cast<std::byte>(tensor.wire);
  }
  for (const StagedTensor& tensor : frame.staged) {  // not moved to its device yet
    std::byte* const stub = bytes.data() + 32 + 16 * tensor.index;
    stub[12] = static_cast<std::byte>(tensor.device);
    stub[13] = std::byte{1};
  }
  return bytes;
}

// Decodes from a buffer of its own, so that a read past the end is seen by a memory checker.
// True if the bytes were accepted; anything but InternalError, or a device that is not here, fails
// the test.
bool accepts(const CodedBytes& bytes) {
  const auto exact = std::make_unique_for_overwrite<std::byte[]>(bytes.size());
  if (!bytes.empty()) std::memcpy(exact.get(), bytes.data(), bytes.size());
  std::vector<DataTensor> data;
  try {
    const ReadFrame frame = decode_frame({exact.get(), bytes.size()}, data, kTightLimits);
    std::size_t total = 0;
    for (const DataTensor& tensor : data) total += tensor.tensor.nbytes();
    EXPECT_LE(total, kTightLimits.tensor_bytes);
    EXPECT_EQ(encoded_again(frame, data), bytes) << "what is read is what was written, to the bit";
    return true;
  } catch (const InternalError&) {
    return false;
  } catch (const UnsupportedError&) {
    return false;
  }
}

std::string error_of(const CodedBytes& bytes) {
  std::vector<DataTensor> data;
  return refusal<InternalError>([&] { decode_frame(bytes, data); });
}

/// That says it is on a GPU, which this LibTorch need not have.
at::Tensor named_gpu_tensor(c10::DeviceIndex index, std::int64_t elements) {
  const c10::Device gpu(c10::DeviceType::CUDA, index);
  const auto memory = at::zeros({elements});
  auto* const data = memory.data_ptr<float>();
  c10::Storage storage(c10::Storage::use_byte_size_t(), memory.nbytes(),
                       c10::DataPtr(
                           data, new at::Tensor(memory),
                           [](void* kept) { delete static_cast<at::Tensor*>(kept); }, gpu),
                       nullptr, /*resizable=*/false);
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CUDA),
      caffe2::TypeMeta::Make<float>());
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous({elements});
  return tensor;
}

/// Wires know the streams of one GPU: what another computes may not be there yet.
TEST(Frames, SendsOnlyTensorsOfHomeStraight) {
  const auto send = [](const at::Tensor& tensor) {
    ByteBuffer control;
    std::vector<DataTensor> data;
    TransferId next = 0;
    encode_frame({Port::kServer, {}, "", tensor}, {0, 1}, next, control, data);
    return data;
  };
  base::set_home_device(c10::Device(c10::DeviceType::CUDA, 0));
  for (const std::int64_t elements : {1, 5'000}) {  // whatever its size
    const auto data = send(named_gpu_tensor(0, elements));
    ASSERT_EQ(data.size(), 1U);
    EXPECT_EQ(data[0].wire, 1);
    EXPECT_EQ(data[0].kind, MemoryKind::kCuda);
    if (!at::hasCUDA()) {  // it is asked for a copy in host memory
      EXPECT_THROW(send(named_gpu_tensor(1, elements)), c10::Error);
    }
  }
  base::set_home_device(c10::DeviceType::CPU);
}

TEST(Frames, PutsSmallTensorsIntoTheControlBuffer) {
  const SampleFrame sent = sample_frame();
  std::vector<DataTensor> data;
  const CodedBytes control = encoded(sent);
  const ReadFrame read = decode_frame(control, data);
  EXPECT_EQ(text_of(read.header), sent.header);
  EXPECT_EQ(text_of(read.body), sent.body);
  EXPECT_EQ(read.port, sent.port);
  EXPECT_GE(read.header.data(), control.data()) << "read in place";
  ASSERT_EQ(read.tensors.size(), sent.tensors.size());
  EXPECT_FALSE(read.tensors[1].defined());
  for (int i : {0, 3, 4, 5, 6}) EXPECT_TRUE(at::equal(read.tensors[i], sent.tensors[i])) << i;
  EXPECT_EQ(read.tensors[2].sizes(), sent.tensors[2].sizes());
}

TEST(Frames, ListsLargeTensorsOnBothSides) {
  const SampleFrame sent{"", "", {at::ones({3000}), at::ones({2}), at::ones({64, 64})}};
  std::vector<DataTensor> sending;
  const CodedBytes control = encoded(sent, &sending);
  std::vector<DataTensor> receiving;
  const ReadFrame read = decode_frame(control, receiving);
  ASSERT_EQ(sending.size(), 2u);
  ASSERT_EQ(receiving.size(), 2u);
  for (int i : {0, 1}) {
    EXPECT_EQ(sending[i].index, receiving[i].index);
    EXPECT_EQ(sending[i].transfer, 10u + i);
    EXPECT_EQ(receiving[i].transfer, 10u + i);
    EXPECT_EQ(receiving[i].wire, kWire);
    EXPECT_TRUE(receiving[i].tensor.is_same(read.tensors[receiving[i].index]));
  }
  EXPECT_EQ(sending[0].tensor.const_data_ptr(), sent.tensors[0].const_data_ptr())
      << "sent without a copy";
}

TEST(Frames, GivesLargeTensorsWithoutHistoryButWithTheirVersion) {
  const at::Tensor result = at::ones({3000}).requires_grad_() * 2;
  std::vector<DataTensor> sending;
  encoded({"", "", {result}}, &sending);
  ASSERT_EQ(sending.size(), 1u);
  EXPECT_FALSE(sending[0].tensor.requires_grad());
  const auto version = sending[0].tensor._version();
  {
    const at::NoGradGuard no_grad;
    at::Tensor(result).add_(1);
  }
  EXPECT_EQ(sending[0].tensor._version(), version + 1);
}

TEST(Frames, WritesEqualFramesAsEqualBytes) {
  const SampleFrame frame{"h", "b", {at::ones({1}, at::kByte), at::ones({3}, at::kByte)}};
  EXPECT_EQ(encoded(frame), encoded(frame));
  const CodedBytes bytes = encoded(frame);
  EXPECT_EQ(std::count(bytes.begin(), bytes.end(), std::byte{0xee}), 0) << "gaps are zero";
}

TEST(Frames, HasTheSizeOfItsFormula) {
  EXPECT_EQ(encoded({}).size(), 32u);
  EXPECT_EQ(encoded({"1234", "123456", {}}).size(), 32u + 4 + 6 + 6);
  EXPECT_EQ(encoded({"", "", {at::Tensor()}}).size(), 32u + 16);
  EXPECT_EQ(encoded({"12345678", "", {at::ones({4})}}).size(), 32u + 16 + 8 + 8 + 16);
  EXPECT_EQ(encoded({"", "", {at::ones({1, 3000})}}).size(), 32u + 16 + 16);
}

TEST(Frames, CarriesThePort) {
  SampleFrame frame = sample_frame();
  frame.port = Port::kCollectives;
  std::vector<DataTensor> data;
  EXPECT_EQ(decode_frame(encoded(frame), data).port, Port::kCollectives);
}

TEST(Frames, RemembersNothingOfTheFrameBefore) {
  ByteBuffer control;
  std::vector<DataTensor> data;
  TransferId next_transfer = 0;
  const SampleFrame first = sample_frame();
  encode_frame({Port::kServer, {}, first.body, first.tensors}, {0, kNoWire, kNoWire}, next_transfer,
               control, data);
  encode_frame({Port::kServer, {}, "only a body", {}}, {0, kNoWire, kNoWire}, next_transfer,
               control, data);
  EXPECT_THAT(data, testing::IsEmpty());
  const ReadFrame read = decode_frame(control.span(), data);
  EXPECT_EQ(text_of(read.body), "only a body");
  EXPECT_THAT(read.tensors, testing::IsEmpty());
}

TEST(Frames, NamesTheVersionItExpects) {
  CodedBytes older = encoded(sample_frame());
  older[3] = std::byte{'1'};
  EXPECT_THAT(error_of(older),
              testing::AllOf(testing::HasSubstr("same build"), testing::HasSubstr("version")));
}

TEST(Frames, RefusesATensorOfTooManyDimensions) {
  const at::Tensor tensor = at::ones(std::vector<std::int64_t>(64, 1));
  EXPECT_TRUE(accepts(encoded({"", "", {tensor}})));
  EXPECT_THROW(encoded({"", "", {tensor.unsqueeze(0)}}), UnsupportedError);
}

TEST(Frames, RefusesABufferCutAnywhere) {
  const CodedBytes whole = encoded(sample_frame());
  EXPECT_TRUE(accepts(whole));
  for (std::size_t size = 0; size < whole.size(); ++size) {
    EXPECT_FALSE(accepts(CodedBytes(whole.begin(), whole.begin() + size))) << size;
  }
}

TEST(Frames, RefusesBytesBehindTheEnd) {
  CodedBytes longer = encoded(sample_frame());
  longer.push_back({});
  EXPECT_FALSE(accepts(longer));
}

TEST(Frames, SurvivesEveryFlippedBitOutsideTheElements) {
  const CodedBytes whole =
      encoded({"h", "b", {at::ones({2}), at::Tensor(), at::ones({30, 40}), at::ones({0})}});
  int accepted = 0;
  for (std::size_t bit = 0; bit < whole.size() * 8; ++bit) {
    CodedBytes flipped = whole;
    flipped[bit / 8] ^= std::byte{1} << (bit % 8);
    accepted += accepts(flipped);
  }
  // Elements, texts, the number of a transfer and its wire, the port; then sizes and dtypes of the
  // same bytes.
  constexpr int kOtherContents = 2 * 32 + 2 * 8 + 64 + 8 + 1;
  EXPECT_GE(accepted, kOtherContents);
  EXPECT_LT(accepted, kOtherContents + 40);
}

TEST(Frames, SurvivesRandomDamage) {
  const CodedBytes whole = encoded(sample_frame());
  std::mt19937_64 random(3);
  int accepted = 0;
  for (int round = 0; round < 20'000; ++round) {
    CodedBytes damaged = whole;
    const std::size_t reach = round % 2 ? damaged.size() : 240;  // prefix, stubs, sizes and texts
    for (std::uint64_t i = random() % 6 + 1; i > 0; --i) {
      damaged[random() % reach] = static_cast<std::byte>(random());
    }
    accepted += accepts(damaged);
  }
  EXPECT_LT(accepted, 20'000);
}

TEST(Frames, RefusesNoise) {
  std::mt19937_64 random(4);
  for (int round = 0; round < 2'000; ++round) {
    CodedBytes noise(random() % 300);
    for (std::byte& byte : noise) byte = static_cast<std::byte>(random());
    EXPECT_FALSE(accepts(noise));
  }
}

TEST(Frames, RefusesTensorsBeyondTheLimit) {
  const auto elements = static_cast<std::int64_t>(kTightLimits.tensor_bytes / 4);
  EXPECT_TRUE(accepts(encoded({"", "", {at::ones({elements})}})));
  EXPECT_FALSE(accepts(encoded({"", "", {at::ones({elements + 1})}})));
  EXPECT_FALSE(accepts(encoded({"", "", {at::ones({elements}), at::ones({elements})}})))
      << "in sum";
}

}  // namespace
}  // namespace smp::d2d
