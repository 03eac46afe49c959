// The states of calls that left: every move of the tables, every other one, and calls as they go.
#include "server/calls/outgoing_call.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <exception>
#include <functional>
#include <iterator>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "server/backward/reply_queue.h"
#include "server/calls/remote_call.h"
#include "server/engine/module_server_testing.h"
#include "server/promises/promised_tensor.h"

namespace smp::server::test {
namespace outgoing_call_test {

using Forward = ForwardState;
using Backward = BackwardState;

// ---- the tables --------------------------------------------------------------------------------

template <class State, const auto& kMoves>
struct Table {
  /// From the first to the last.
  static std::vector<State> states(State last) {
    std::vector<State> all;
    for (int i = 0; i <= static_cast<int>(last); ++i) all.push_back(static_cast<State>(i));
    return all;
  }
  static bool has(State from, State to) {
    return std::any_of(std::begin(kMoves), std::end(kMoves),
                       [&](const auto& move) { return move.from == from && move.to == to; });
  }
  static void expect_no_other_move(State last) {
    for (const auto from : states(last)) {
      for (const auto to : states(last)) {
        TableState<State, kMoves> state(from);
        if (has(from, to)) {
          state.become(to);
          EXPECT_EQ(state, to);
        } else {
          EXPECT_THROW(state.become(to), InternalError)
              << static_cast<int>(from) << " to " << static_cast<int>(to);
          EXPECT_EQ(state, from) << "it stays what it was";
        }
      }
    }
  }
  static std::set<State> reached_from(std::set<State> reached) {
    for (std::size_t before = 0; before != reached.size();) {
      before = reached.size();
      for (const auto& move : kMoves) {
        if (reached.count(move.from) > 0) reached.insert(move.to);
      }
    }
    return reached;
  }
};
using ForwardTable = Table<Forward, kForwardMoves>;
using BackwardTable = Table<Backward, kBackwardMoves>;

TEST(OutgoingCall, MovesAsItsTablesSayAndNotOtherwise) {
  ForwardTable::expect_no_other_move(Forward::kAborted);
  BackwardTable::expect_no_other_move(Backward::kReleased);
}

TEST(OutgoingCall, IsAwaitedOrPromisedFromTheFirstAndEnds) {
  EXPECT_EQ(ForwardTable::reached_from({Forward::kAsked, Forward::kPromised}).size(),
            ForwardTable::states(Forward::kAborted).size());
  for (const auto state : ForwardTable::states(Forward::kAborted)) {
    EXPECT_FALSE(ForwardTable::has(state, Forward::kAsked));
    EXPECT_FALSE(ForwardTable::has(state, Forward::kPromised));
    const auto later = ForwardTable::reached_from({state});
    EXPECT_EQ(has_ended(state), later.count(Forward::kAborted) == 0 || state == Forward::kAborted);
    const bool ends = later.count(Forward::kUsed) + later.count(Forward::kThrown) +
                          later.count(Forward::kAborted) >
                      0;
    EXPECT_TRUE(ends) << static_cast<int>(state);
  }
}

TEST(OutgoingCall, CanAlwaysBeLeftForAnotherBackward) {
  for (const auto state : BackwardTable::states(Backward::kReleased)) {
    EXPECT_EQ(BackwardTable::reached_from({state}).size(),
              BackwardTable::states(Backward::kReleased).size())
        << static_cast<int>(state);
  }
}

// ---- calls -------------------------------------------------------------------------------------

struct OneImpl : torch::nn::Module {
  smp::test::Scale remote{nullptr};
  OneImpl() { remote = register_module("remote", smp::test::Scale(2)); }
  at::Tensor forward(const at::Tensor& x) { return remote(x); }
};
SMP_MODULE(One);

/// Runs `body` in a step. Its first call is awaited; what calls like it return is known then.
/// @return the records that were left at the step's end
std::uint64_t in_step(const std::function<void(One& model, ModuleServer& server)>& body) {
  LocalServers servers(2);
  const auto schedule = schedule::make_simple();
  std::uint64_t left = 0;
  servers.run([&](ModuleServer& server) {
    One model;
    place_modules(server, *model, {{"remote", 1}});
    StepTask task;
    task.schedule = schedule.get();
    task.weights = {1};
    task.body = [&](int) { body(model, server); };
    server.run_step(task);
    left += server.core().counters.records_left;
  });
  return left;
}

OutgoingCall& call_of(const at::Tensor& result) {
  auto* const node = torch::autograd::impl::gradient_edge(result).function.get();
  return dynamic_cast<RemoteCall&>(*node).call();
}

TEST(OutgoingCall, IsUsedAtOnceOrWhenItsValueIsNeeded) {
  in_step([](One& model, ModuleServer&) {
    const auto x = at::ones({2}).requires_grad_();
    const auto awaited = model(x);
    EXPECT_EQ(call_of(awaited).forward(), Forward::kUsed);
    EXPECT_TRUE(call_of(awaited).facts().record);
    const auto promised = model(x);
    auto& call = call_of(promised);
    EXPECT_EQ(call.forward(), Forward::kPromised);
    EXPECT_FALSE(call.facts().record);
    fetch(promised);
    EXPECT_EQ(call.forward(), Forward::kUsed);
    EXPECT_TRUE(call.facts().record);
    EXPECT_THROW(call.use({}), InternalError) << "once";
  });
}

TEST(OutgoingCall, KeepsItsRecordOrNot) {
  in_step([](One& model, ModuleServer& server) {
    const auto y = model(at::ones({2}).requires_grad_());
    const auto backward = [&](bool keep) {
      server.engine().backward({y}, {at::ones_like(y)}, keep);
    };
    EXPECT_EQ(call_of(y).backward(), Backward::kNone);
    backward(true);
    EXPECT_EQ(call_of(y).backward(), Backward::kNone);
    backward(false);
    EXPECT_EQ(call_of(y).backward(), Backward::kReleased);
  });
}

/// Of a call that is joined by hand, and whose owner is not asked.
class JoinedCall {
 public:
  JoinedCall(const OutgoingCall& call, StepState& step) : call_(call), step_(step) {}
  ResponseTarget& target() {
    const auto found = step_.requests.take(call_.backward_request());
    SMP_REQUIRE(found, "the call has no request");
    return **found;
  }

 private:
  const OutgoingCall& call_;
  StepState& step_;
};

TEST(OutgoingCall, KeepsWhatCameEarlyForThePass) {
  in_step([](One& model, ModuleServer& server) {
    const auto y = model(at::ones({2}).requires_grad_());
    auto& call = call_of(y);
    JoinedCall joined(call, *server.core().step);
    ReplyQueue replies;
    fiber::Event answered;
    call.join({}, {}, &answered);
    EXPECT_EQ(call.backward(), Backward::kJoined);
    EXPECT_FALSE(call.begun_early());
    EXPECT_THROW(call.join({}, replies.expect(0)), UsageError) << "two at the same time";
    BackwardResponse response;
    response.gradients = {at::full({2}, 7)};
    joined.target().on_backward(std::move(response));
    EXPECT_EQ(call.backward(), Backward::kAnswered);
    EXPECT_TRUE(call.begun_early());
    answered.wait({"an answer that is here"});
    ReplyQueue late;
    call.join({}, late.expect(0));
    EXPECT_EQ(call.backward(), Backward::kReleased);
    auto reply = late.take();
    ASSERT_TRUE(reply.has_value());
    EXPECT_TRUE(at::equal(reply->gradients.at(0), at::full({2}, 7)));
    EXPECT_THROW(call.join({}, late.expect(0)), UsageError) << "a second time";
    call.keep_record();
    EXPECT_EQ(call.backward(), Backward::kNone);
  });
}

TEST(OutgoingCall, GivesThePassWhatWasThrown) {
  in_step([](One& model, ModuleServer& server) {
    const auto y = model(at::ones({2}).requires_grad_());
    auto& call = call_of(y);
    JoinedCall joined(call, *server.core().step);
    const auto error_after = [&](const std::function<void(ResponseTarget&)>& answer) {
      ReplyQueue replies;
      call.join({}, replies.expect(0));
      answer(joined.target());
      call.keep_record();
      return replies.take()->error;
    };
    const auto thrown = error_after([](auto& target) { target.on_error({PpRank(1), "broken"}); });
    EXPECT_THROW(std::rethrow_exception(thrown), RemoteError);
    const auto stray = error_after([](auto& target) { target.on_forward({}); });
    EXPECT_THROW(std::rethrow_exception(stray), RemoteError) << "an answer to something else";
    const auto aborted = error_after([](auto& target) { target.on_abort(); });
    EXPECT_THROW(std::rethrow_exception(aborted), StepAborted);
  });
}

TEST(OutgoingCall, IsAsIfNothingHadBeenWhenItIsLeft) {
  in_step([](One& model, ModuleServer& server) {
    const auto y = model(at::ones({2}).requires_grad_());
    auto& call = call_of(y);
    const auto& requests = server.core().step->requests;
    const auto before = requests.size();
    for (int i = 0; i < 2; ++i) {
      call.join({}, {});
      EXPECT_EQ(requests.size(), before + 1);
      call.leave();
      EXPECT_EQ(call.backward(), Backward::kNone);
      EXPECT_EQ(requests.size(), before);
    }
    call.leave();
    EXPECT_EQ(call.backward(), Backward::kNone);
    server.engine().backward({y}, {at::ones_like(y)}, false);
    EXPECT_EQ(call.backward(), Backward::kReleased);
  });
}

/// Runs a backward that keeps the graph and throws here while the owner of `remote` is at work.
void break_backward_of(const at::Tensor& remote, const at::Tensor& local, const at::Tensor& x,
                       bool create_graph = false) {
  BackwardOptions options;
  options.keep_graph = true;
  options.create_graph = create_graph;
  options.accumulate = false;
  const edge_list roots{torch::autograd::impl::gradient_edge(remote),
                        torch::autograd::impl::gradient_edge(local)};
  const edge_list captures{{torch::autograd::impl::try_get_grad_accumulator(x), 0}};
  EXPECT_THROW(run_backward(roots, {at::ones({2}), at::ones({2})}, options, captures),
               std::domain_error);
}

TEST(OutgoingCall, IsReleasedWhenItsGraphDiesBeforeTheAnswer) {
  const auto left = in_step([](One& model, ModuleServer& server) {
    const auto x = at::ones({2}).requires_grad_();
    const auto local = x * 2;
    local.register_hook([](const at::Tensor&) { throw std::domain_error("broken"); });
    auto remote = model(x);
    break_backward_of(remote, local, x);
    EXPECT_EQ(call_of(remote).backward(), Backward::kAsked);
    const auto& requests = server.core().step->requests;
    remote.reset();
    EXPECT_EQ(requests.size(), 1) << "the answer is awaited";
    LocalServers::sleep(base::kSecond);
    EXPECT_EQ(requests.size(), 0);
  });
  EXPECT_EQ(left, 0);
}

TEST(OutgoingCall, AGraphOfItsGradientsIsReleasedIfNoPassTakesIt) {
  const auto left = in_step([](One& model, ModuleServer& server) {
    const auto x = at::ones({2}).requires_grad_();
    const auto local = x * 2;
    local.register_hook([](const at::Tensor&) { throw std::domain_error("broken"); });
    auto remote = model(x);
    auto& call = call_of(remote);
    JoinedCall joined(call, *server.core().step);
    BackwardOptions options;
    options.keep_graph = options.create_graph = true;
    options.accumulate = false;
    ReplyQueue replies;
    BackwardResponse response;
    response.record = {12345, 1};
    response.gradients = {at::ones({2})};
    response.requires_grad = std::string(1, '\1');
    call.join(options, replies.expect(0));
    joined.target().on_backward(std::move(response));
    auto graph = call.take_gradient_graph();
    ASSERT_NE(graph.call, nullptr);
    EXPECT_EQ(graph.call->facts().record, (RecordId{12345, 1}));
    EXPECT_EQ(graph.call->forward(), Forward::kUsed);
    EXPECT_EQ(graph.requires_grad.view(), std::string(1, '\1'));
    EXPECT_EQ(call.take_gradient_graph().call, nullptr) << "once";
    EXPECT_EQ(call.backward(), Backward::kNone) << "the graph was kept";
    break_backward_of(remote, local, x, /*create_graph=*/true);
    remote.reset();
    LocalServers::sleep(base::kSecond);
  });
  EXPECT_EQ(left, 0) << "neither that of the forward nor that of the backward";
}

TEST(OutgoingCall, IsReleasedWhenItsGraphDiesAndNoPassCame) {
  const auto left = in_step([](One& model, ModuleServer& server) {
    auto y = model(at::ones({2}).requires_grad_());
    auto& call = call_of(y);
    JoinedCall joined(call, *server.core().step);
    BackwardOptions options;
    options.keep_graph = true;
    call.join(options, {});
    joined.target().on_backward({});
    EXPECT_EQ(call.backward(), Backward::kAnswered);
    y.reset();
    LocalServers::sleep(base::kSecond);
  });
  EXPECT_EQ(left, 0);
}

}  // namespace outgoing_call_test
}  // namespace smp::server::test
