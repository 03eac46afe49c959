// Slices of values that are drawn in pieces: those of the whole, to the bit, and the generator goes
// on from where the whole leaves it.
#include "tp/slices/drawn_slice.h"

#include <gtest/gtest.h>
#include <torch/torch.h>
#include <xxhash.h>

#include "tp/group/slice_part.h"

namespace smp::tp {
namespace drawn_slice_test {

void normal(const at::Tensor& rows, std::int64_t) { rows.normal_(0, 0.7); }
void uniform(const at::Tensor& rows, std::int64_t) { torch::nn::init::kaiming_uniform_(rows, 2.2); }

constexpr int kRanks = 3;

void expect_parts_of_whole(at::IntArrayRef sizes, std::int64_t dim, std::int64_t piece,
                           const FillRows& fill) {
  torch::manual_seed(9);
  auto whole = at::empty(sizes);
  {
    const torch::NoGradGuard no_grad;
    fill(whole, 0);
  }
  const auto next = at::rand({3});
  const auto size = (sizes[dim] + kRanks - 1) / kRanks;
  for (int rank = 0; rank < kRanks; ++rank) {
    torch::manual_seed(9);
    const auto drawn = draw_slice(sizes, dim, size, rank, fill, piece);
    EXPECT_TRUE(at::equal(drawn.slice, part_of(whole, dim, size, rank)))
        << sizes << " along " << dim << ", pieces of " << piece << ", rank " << rank;
    EXPECT_EQ(drawn.hash, XXH3_64bits(whole.const_data_ptr(), whole.nbytes()));
    EXPECT_TRUE(at::equal(at::rand({3}), next)) << "numbers that follow";
  }
}

TEST(DrawnSlice, IsThatOfTheWhole) {
  for (const std::int64_t piece : {1, 100, 1 << 22}) {
    for (const auto& sizes : std::vector<std::vector<std::int64_t>>{
             {100, 7}, {64, 3}, {16, 5}, {5, 3}, {1, 4}, {33, 1}, {47, 2}, {200}, {50, 2, 3}}) {
      for (std::int64_t dim = 0; dim < static_cast<std::int64_t>(sizes.size()); ++dim) {
        expect_parts_of_whole(sizes, dim, piece, normal);
        if (sizes.size() > 1) expect_parts_of_whole(sizes, dim, piece, uniform);
      }
    }
  }
}

TEST(DrawnSlice, ComesInPiecesOfRowsInOrder) {
  std::vector<std::int64_t> firsts, lengths;
  draw_slice(
      {100, 2}, 0, 50, 1,
      [&](const at::Tensor& rows, std::int64_t first) {
        firsts.push_back(first);
        lengths.push_back(rows.size(0));
        rows.fill_(first);
      },
      /*piece=*/40);
  EXPECT_EQ(firsts, (std::vector<std::int64_t>{0, 32, 64}));
  EXPECT_EQ(lengths, (std::vector<std::int64_t>{32, 32, 36}));
}

}  // namespace drawn_slice_test
}  // namespace smp::tp
