// hoarder.cpp: see the header.
#include "api/state/hoarder.h"

#include "api/modes/static_mode_testing.h"

namespace smp {
namespace static_mode_test {

/// Where neither members nor the program show them.
static std::vector<Tensor> hidden_results;
static bool hides_results = false;

/// On one rank, its piece on another, which it calls a second time.
struct HoarderImpl : torch::nn::Module {
  HoarderImpl() : piece(register_module("piece", Piece())) {}
  Tensor forward(const Tensor& x) {
    auto y = piece(x);
    if (hides_results) hidden_results.push_back(piece(y));
    return y;
  }
  Piece piece;
};
SMP_MODULE(Hoarder);

}  // namespace static_mode_test

template <>
inline constexpr bool private_state_v<static_mode_test::HoarderImpl> = true;

namespace static_mode_test {

struct HoarderNetImpl : torch::nn::Module {
  HoarderNetImpl()
      : hoarder(register_module("hoarder", Hoarder())), last(register_module("last", Piece())) {}
  Hoarder hoarder;
  Piece last;
};
TORCH_MODULE(HoarderNet);

HoarderSteps train_hoarder(int steps, int hides) {
  HoarderSteps trained;
  torch::manual_seed(5);
  HoarderNet net;
  DistributedModel model(net);
  model.set_partition("", 0);
  model.set_partition("hoarder", 1);
  model.set_partition("hoarder.piece", 2);
  model.set_partition("last", 2);
  auto run = smp::step([&](const Tensor& x) {
    auto loss = net->last(net->hoarder(x)).sum();
    model.backward(loss);
    return loss;
  });
  for (int step = 0; step < steps; ++step) {
    hides_results = step >= hides;
    const auto before = control_messages();
    const auto loss = run(plain_batch(step)).reduce_mean().item<double>();
    if (rank() == 0) trained.losses.push_back(loss);
    trained.control_messages.push_back(control_messages() - before);
  }
  return trained;
}

void forget_what_is_hidden() { hidden_results.clear(); }

}  // namespace static_mode_test
}  // namespace smp
