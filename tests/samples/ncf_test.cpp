// Collaborative filtering with spread tables equals one process; its samples and its ranking are
// what they claim to be.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <cmath>
#include <fstream>
#include <set>

#include "ncf/ncf.h"
#include "ncf/ranking.h"
#include "ncf/ratings.h"
#include "smp/smp.h"

namespace smp {
namespace ncf_test {

using ncf::Ncf;
using ncf::NcfConfig;
using ncf::Ratings;
using testing::HasSubstr;
using torch::Tensor;

constexpr int kSteps = 4;
constexpr int kMicrobatches = 2;
constexpr std::size_t kRows = 6;

NcfConfig small() { return {.users = 40, .items = 130, .gmf_width = 4, .mlp_width = 8}; }

Ratings small_ratings() { return Ratings::generate(small().users, small().items, 5, 3); }

torch::optim::SGD sgd(const std::vector<Tensor>& parameters) {
  return torch::optim::SGD(parameters, torch::optim::SGDOptions(0.5).momentum(0.9));
}

ncf::Samples batch_of(const Ratings& ratings, int step, int replica, int replicas) {
  std::vector<std::size_t> numbers;
  for (std::size_t i = 0; i < kRows; ++i) {
    numbers.push_back((7 * i + 31 * static_cast<std::size_t>(step * replicas + replica)) %
                      ratings.size());
  }
  return ratings.samples(numbers, 0);
}

template <class Net>
Tensor loss_of(Net& net, const Tensor& user, const Tensor& item, const Tensor& label) {
  return torch::binary_cross_entropy_with_logits(net(user, item), label.to(torch::kDouble));
}

std::vector<double> losses_of_one_process(bool sparse, int replicas) {
  const auto ratings = small_ratings();
  torch::manual_seed(2);
  auto config = small();
  config.sparse = sparse;
  Ncf net(config, /*spread=*/false);
  net->to(torch::kDouble);
  auto optimizer = sgd(net->parameters());
  std::vector<double> losses;
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    losses.push_back(0);
    for (int replica = 0; replica < replicas; ++replica) {
      const auto [user, item, label] = batch_of(ratings, step, replica, replicas);
      for (std::size_t m = 0; m < kMicrobatches; ++m) {
        const auto loss = loss_of(net, user.chunk(kMicrobatches)[m], item.chunk(kMicrobatches)[m],
                                  label.chunk(kMicrobatches)[m]) /
                          (replicas * kMicrobatches);
        loss.backward();
        losses.back() += loss.item<double>();
      }
    }
    optimizer.step();
  }
  return losses;
}

void expect_losses_of_one_process(int ranks, int tp, bool sparse) {
  SCOPED_TRACE(testing::Message() << ranks << " ranks, tp " << tp << ", sparse " << sparse);
  const auto expected = losses_of_one_process(sparse, ranks);
  Config config;
  config.pipeline_parallel_degree = 1;
  config.tensor_parallel_degree = tp;
  config.microbatches = kMicrobatches;
  run_local(ranks,
            [&] {
              const auto ratings = small_ratings();
              torch::manual_seed(2);
              auto sizes = small();
              sizes.sparse = sparse;
              Ncf net(sizes);
              net->to(torch::kDouble);
              DistributedModel model(net);
              EXPECT_EQ(net->named_parameters()["user_mlp.weight"].size(1), small().mlp_width / tp);
              EXPECT_EQ(net->named_parameters()["hidden0.weight"].size(1), 2 * small().mlp_width);
              DistributedOptimizer optimizer(model, sgd(net->parameters()));
              auto train = step([&](const Tensor& user, const Tensor& item, const Tensor& label) {
                const auto loss = loss_of(model, user, item, label);
                model.backward(loss);
                return loss;
              });
              for (int s = 0; s < kSteps; ++s) {
                optimizer.zero_grad();
                const auto [user, item, label] = batch_of(ratings, s, dp_rank(), dp_size());
                const double own = train(user, item, label).reduce_mean().item<double>();
                double sum = 0;
                for (const int member : group(Group::kDp))
                  sum += broadcast(own, member, Group::kDp);
                EXPECT_NEAR(sum / dp_size(), expected[static_cast<std::size_t>(s)], 1e-12)
                    << "step " << s;
                optimizer.step();
              }
            },
            config, {1});
}

TEST(Ncf, LossesEqualOneProcessOnTheGlobalBatch) {
  for (const auto& [ranks, tp] :
       std::vector<std::pair<int, int>>{{1, 1}, {2, 1}, {2, 2}, {4, 2}, {4, 4}}) {
    expect_losses_of_one_process(ranks, tp, false);
  }
  expect_losses_of_one_process(4, 2, true);
}

TEST(NcfRatings, AreTrainedOnWithoutWhatIsHeldOutAndWithOthersAsNegatives) {
  const auto ratings = small_ratings();
  ASSERT_EQ(ratings.size(), 40u * 4 * 5);  // of 5 items each user's last is held out
  std::vector<std::size_t> numbers(ratings.size());
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = i;
  const auto all = ratings.samples(numbers, 1);
  EXPECT_EQ(all.label.sum().item<double>(), 40 * 4);
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const auto row = static_cast<std::int64_t>(i);
    const auto user = all.user[row].item<std::int64_t>();
    const auto item = all.item[row].item<std::int64_t>();
    EXPECT_EQ(ratings.taken(user, item), all.label[row].item<float>() == 1) << "sample " << i;
    if (all.label[row].item<float>() == 1) {
      EXPECT_NE(item, ratings.held_out(user));
    }
  }
  EXPECT_FALSE(torch::equal(all.item, ratings.samples(numbers, 2).item)) << "other negatives";
  EXPECT_TRUE(torch::equal(all.item, small_ratings().samples(numbers, 1).item));
}

TEST(NcfRatings, HaveCandidatesThatTheUserDidNotTake) {
  const auto ratings = small_ratings();
  const auto candidates = ratings.candidates({7, 3});
  ASSERT_EQ(candidates.sizes(), (at::IntArrayRef{2, 100}));
  for (const std::int64_t row : {0, 1}) {
    const std::int64_t user = row == 0 ? 7 : 3;
    EXPECT_EQ(candidates[row][0].item<std::int64_t>(), ratings.held_out(user));
    std::set<std::int64_t> different;
    for (std::int64_t i = 0; i < 100; ++i) {
      const auto item = candidates[row][i].item<std::int64_t>();
      different.insert(item);
      EXPECT_EQ(ratings.taken(user, item), i == 0);
    }
    EXPECT_EQ(different.size(), 100u);
  }
}

/// A file of two users and 120 items; user 5 took item 9 last.
std::string file_of_ratings(const std::string& separator, const std::string& heading) {
  const auto path = testing::TempDir() + "ratings." + std::to_string(getpid());
  std::ofstream file(path);
  if (!heading.empty()) file << heading << '\n';
  const auto line = [&](int user, int item, int time) {
    file << user << separator << item << separator << "4.5" << separator << time << '\n';
  };
  for (int item = 0; item < 9; ++item) line(5, item, 100 + item);
  line(5, 9, 900);
  line(5, 10, 3);
  for (int item = 11; item < 120; ++item) line(item, item, 5), line(item, item - 1, 4);
  return path;
}

TEST(NcfRatings, AreReadFromFilesOfMovieLens) {
  for (const auto& [separator, heading] : std::vector<std::pair<std::string, std::string>>{
           {"\t", ""}, {"::", ""}, {",", "userId,movieId,rating,timestamp"}}) {
    const auto path = file_of_ratings(separator, heading);
    const auto ratings = Ratings::read(path);
    EXPECT_EQ(ratings.users(), 110);
    EXPECT_EQ(ratings.items(), 120);
    EXPECT_EQ(ratings.held_out(0), 9) << "user 5 comes first, item 9 is the tenth";
    EXPECT_EQ(ratings.size(), 5u * (10 + 109));
    std::ofstream(path, std::ios::app) << "7" << separator << "8\n";
    try {
      Ratings::read(path);
      ADD_FAILURE() << "read a line of two fields";
    } catch (const std::runtime_error& error) {
      EXPECT_THAT(error.what(), HasSubstr("is no line user, item, rating, time"));
    }
    std::remove(path.c_str());
  }
  EXPECT_THROW(Ratings::read("no such file"), std::runtime_error);
}

TEST(NcfRanking, CountsHitsAmongTheBestTenAndTheirPlaces) {
  auto scores = torch::zeros({4, 100});
  scores[0][0] = 1;                       // best
  scores[1] = torch::arange(100, 0, -1);  // best of all different ones
  scores[1][0] = 96.5;                    // three are better: 99, 98, 97
  scores[2][0] = -1;                      // last
  const auto ranking = ncf::rank_first(scores, torch::tensor({1., 1., 1., 0.}));
  EXPECT_EQ(ranking.users, 3);
  EXPECT_EQ(ranking.hits, 2);
  EXPECT_NEAR(ranking.gain, 1 + 1 / std::log2(5.), 1e-12);
  // Those that are as good count as better: a model that says the same of all has no hit.
  EXPECT_EQ(ncf::rank_first(torch::zeros({1, 100}), torch::ones({1})).hits, 0);
  // Nine better ones leave the tenth place, ten do not.
  auto edge = torch::zeros({2, 100});
  edge.narrow(1, 1, 9).fill_(2);
  edge[1][10] = 2;
  edge.narrow(1, 0, 1).fill_(1);
  EXPECT_EQ(ncf::rank_first(edge, torch::ones({2})).hits, 1);
}

}  // namespace ncf_test
}  // namespace smp
