// Damaged frames: d2d/wire/wire_fuzz.h.
#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "d2d/channel/frame_decoder.h"
#include "d2d/channel/frame_encoder.h"
#include "d2d/wire/wire_fuzz.h"
#include "smp/error.h"

namespace smp::d2d {
namespace frame_fuzz_test {

using testing::AnyOf;
using testing::HasSubstr;

Bytes control_of(std::uint64_t seed) {
  DamagedBytes random(seed);
  std::vector<at::Tensor> tensors;
  for (auto count = random.below(6); count > 0; --count) {
    const auto elements = static_cast<std::int64_t>(random.below(2'000));
    tensors.push_back(random.one_in(5) ? at::Tensor() : at::ones({2, elements}, at::kFloat));
  }
  ByteBuffer control;
  std::vector<DataTensor> data;
  TransferId next = random.below(1'000);
  const Bytes header = random.noise(random.below(40));
  encode_frame({random.one_in(2) ? Port::kServer : Port::kCollectives, header, "a body", tensors},
               {0, kNoWire, kNoWire}, next, control, data);
  return {control.span().begin(), control.span().end()};
}

TEST(FrameFuzz, AFrameIsReadOrSaidToBeMalformed) {
  constexpr FrameLimits kLimits{.tensor_bytes = 1 << 20};
  int refused = 0;
  const int rounds = fuzz_rounds(20'000);
  for (int round = 0; round < rounds; ++round) {
    DamagedBytes damage(static_cast<std::uint64_t>(round));
    const ExactBytes bytes(damage.of(control_of(damage.below(50))));
    std::vector<DataTensor> data;
    const std::string text = complaint([&] {
      const ReadFrame frame = decode_frame(bytes.span(), data, kLimits);
      std::size_t set_aside = 0;
      for (const at::Tensor& tensor : frame.tensors) {
        if (tensor.defined()) set_aside += tensor.nbytes();
      }
      EXPECT_LE(set_aside, kLimits.tensor_bytes + bytes.span().size()) << "round " << round;
      EXPECT_LE(frame.header.size() + frame.body.size(), bytes.span().size());
    });
    if (text.empty()) continue;
    ++refused;
    EXPECT_THAT(text, AnyOf(HasSubstr("malformed"), HasSubstr("device"))) << "round " << round;
  }
  EXPECT_GT(refused, rounds / 3);
}

}  // namespace frame_fuzz_test
}  // namespace smp::d2d
