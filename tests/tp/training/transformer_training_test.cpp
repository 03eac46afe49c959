// A stack of transformer layers with two sequences trains as one process does, in both layouts and
// in every mix of degrees; its state is that of plain layers.
#include "tp/training/transformer_training.h"

#include <tuple>

namespace smp::tp {
namespace transformer_training_test {

using namespace transformer_training;

void expect_as_one_process(bool prescaled) {
  for (const bool before : {false, true}) {
    const auto plain = train_plain(before);
    for (const auto* layout : kLayouts) {
      for (const auto& [ranks, pp, tp] : std::vector<std::tuple<int, int, int>>{
               {1, 1, 1}, {2, 1, 2}, {4, 1, 4}, {4, 2, 2}, {8, 2, 2}}) {
        SCOPED_TRACE(testing::Message() << layout << ", " << ranks << " ranks, pp " << pp << ", tp "
                                        << tp << (before ? ", norms before" : ", norms after"));
        Config config;
        config.pipeline_parallel_degree = pp;
        config.tensor_parallel_degree = tp;
        config.optimize = layout;
        config.microbatches = 2;
        config.prescaled_batch = prescaled;
        config.plan_cache = "off";
        run_local(ranks, [&, before = before] { train_and_compare(plain, before); }, config, {1});
      }
    }
  }
}

TEST(TransformerTraining, IsThatOfOneProcessInBothLayouts) { expect_as_one_process(false); }
TEST(TransformerTraining, IsThatOfOneProcessWithAPrescaledBatch) { expect_as_one_process(true); }

}  // namespace transformer_training_test
}  // namespace smp::tp
