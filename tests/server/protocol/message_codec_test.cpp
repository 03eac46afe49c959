// Every field of every kind of message crosses the wire, and nothing else is taken for one.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>

#include "d2d/wires/local/local_wire.h"
#include "server/protocol/message_decoder.h"
#include "server/protocol/message_encoder.h"
#include "smp/error.h"

namespace smp::server {
namespace {

/// Two ranks of one process; what rank 0 sends is decoded on rank 1.
class MessageCodecTest : public testing::Test {
 protected:
  MessageCodecTest() {
    receiver_.set_receiver(d2d::Port::kServer,
                           [this](GlobalRank source, d2d::ArrivedFrame&& frame) {
                             EXPECT_EQ(source, GlobalRank(0));
                             arrived_ = decode_message(std::move(frame));
                           });
    receiver_.set_failure_handler([this](const std::string& what) { failure_ = what; });
  }

  template <class Kind>
  Kind cross(const Kind& message) {
    arrived_.reset();
    send_message(sender_, GlobalRank(1), 41, message);
    for (int i = 0; i < 100 && !arrived_ && failure_.empty(); ++i) {
      sender_.poll();
      receiver_.poll();
    }
    EXPECT_EQ(failure_, "");
    EXPECT_TRUE(arrived_.has_value());
    EXPECT_EQ(arrived_->step, 41);
    return std::get<Kind>(arrived_->message);
  }
  template <class Kind>
  Kind cross_rare(const Kind& message) {
    return std::get<Kind>(Message(cross(Message(message)).index() == Message(message).index()
                                      ? arrived_->message
                                      : Message()));
  }

  std::shared_ptr<d2d::LocalHub> hub_ = std::make_shared<d2d::LocalHub>(2);
  d2d::Channel sender_{std::make_unique<d2d::LocalWire>(hub_, GlobalRank(0))};
  d2d::Channel receiver_{std::make_unique<d2d::LocalWire>(hub_, GlobalRank(1))};
  std::optional<ReceivedMessage> arrived_;
  std::string failure_;
};

template <>
Message MessageCodecTest::cross(const Message& message) {
  arrived_.reset();
  send_message(sender_, GlobalRank(1), 41, message);
  for (int i = 0; i < 100 && !arrived_ && failure_.empty(); ++i) receiver_.poll();
  EXPECT_EQ(failure_, "");
  return arrived_->message;
}

ForwardRequest request_with(int tensors, int depth) {
  ForwardRequest request;
  request.request = {7, 3};
  request.module = ModuleId{12};
  request.call = 0xfedcba9876543210u;
  request.microbatch = 5;
  request.weight = 1.0 / 3;
  for (int i = 0; i < depth; ++i)
    request.position.caller.append(static_cast<std::uint32_t>(i * 50));
  request.position.ordinal = 9;
  request.position.random_key = 0x123456789abcdefu;
  request.after_first_backward = true;
  request.settings = {false, 0b1011, std::string("\x05\x80", 2)};
  request.modes.grad = false;
  request.modes.autocast[1] = {true, at::kHalf};
  request.arguments.bytes = std::string("a\0b", 3);
  for (int i = 0; i < tensors; ++i) {
    request.arguments.tensors.push_back(i % 3 == 2 ? at::Tensor() : at::full({2}, i));
    request.requires_grad.push_back(i % 2 == 0);
  }
  return request;
}

void expect_equal(const ForwardRequest& got, const ForwardRequest& sent) {
  EXPECT_EQ(got.request, sent.request);
  EXPECT_EQ(got.module, sent.module);
  EXPECT_EQ(got.call, sent.call);
  EXPECT_EQ(got.microbatch, sent.microbatch);
  EXPECT_EQ(got.weight, sent.weight);
  EXPECT_EQ(got.position.caller, sent.position.caller);
  EXPECT_EQ(got.position.ordinal, sent.position.ordinal);
  EXPECT_EQ(got.position.random_key, sent.position.random_key);
  EXPECT_EQ(got.after_first_backward, sent.after_first_backward);
  EXPECT_EQ(got.settings, sent.settings);
  EXPECT_EQ(got.modes, sent.modes);
  EXPECT_EQ(got.requires_grad, sent.requires_grad);
  EXPECT_EQ(got.forms, sent.forms);
  EXPECT_EQ(got.row, sent.row);
  EXPECT_EQ(got.place, sent.place);
  EXPECT_EQ(got.keep_outputs, sent.keep_outputs);
  EXPECT_EQ(got.withhold_outputs, sent.withhold_outputs);
  ASSERT_EQ(got.promised.size(), sent.promised.size());
  for (std::size_t i = 0; i < sent.promised.size(); ++i) {
    EXPECT_EQ(got.promised[i].index, sent.promised[i].index);
    EXPECT_EQ(got.promised[i].source.owner, sent.promised[i].source.owner);
    EXPECT_EQ(got.promised[i].source.request, sent.promised[i].source.request);
    EXPECT_EQ(got.promised[i].source.output, sent.promised[i].source.output);
    EXPECT_EQ(got.promised[i].ahead, sent.promised[i].ahead);
  }
  EXPECT_EQ(got.ahead, sent.ahead);
  EXPECT_EQ(got.releases, sent.releases);
  EXPECT_EQ(got.arguments.bytes, sent.arguments.bytes);
  ASSERT_EQ(got.arguments.tensors.size(), sent.arguments.tensors.size());
  for (std::size_t i = 0; i < sent.arguments.tensors.size(); ++i) {
    const auto& tensor = sent.arguments.tensors[i];
    ASSERT_EQ(got.arguments.tensors[i].defined(), tensor.defined()) << i;
    if (!tensor.defined()) continue;
    EXPECT_TRUE(at::equal(got.arguments.tensors[i], tensor)) << i;
  }
}

TEST_F(MessageCodecTest, AForwardRequestComesBackWhole) {
  const auto sent = request_with(3, 4);
  expect_equal(cross(sent), sent);
}

TEST_F(MessageCodecTest, SoDoesOneOfManyTensorsFromDeepInside) {
  for (const int tensors : {0, 63, 64, 65, 200}) {
    for (const int depth : {0, 15, 29, 30, 300}) {
      SCOPED_TRACE(testing::Message() << tensors << " tensors, depth " << depth);
      const auto sent = request_with(tensors, depth);
      expect_equal(cross(sent), sent);
    }
  }
}

TEST_F(MessageCodecTest, NotesAboutTensorsTravelBesideLongKeysAndManyFlags) {
  for (const int tensors : {1, 65}) {
    for (const int depth : {1, 300}) {
      auto sent = request_with(tensors, depth);
      sent.forms = std::string("forms\0of them", 13);
      expect_equal(cross(sent), sent);
    }
  }
  for (const auto& [links, forms] :
       {std::pair<std::string, std::string>{"links", ""}, {"", "forms"}, {"links", "and forms"}}) {
    ForwardResponse sent;
    sent.links = links;
    sent.forms = forms;
    sent.result = {"bytes", {}};
    for (int i = 0; i < 70; ++i) {
      sent.result.tensors.push_back(at::full({1}, i));
      sent.requires_grad.push_back(i % 3 == 0);
    }
    const auto got = cross(sent);
    EXPECT_EQ(got.links, links);
    EXPECT_EQ(got.forms, forms);
    EXPECT_EQ(got.requires_grad, sent.requires_grad);
    EXPECT_EQ(got.result.bytes, "bytes");
  }
  EXPECT_EQ(cross(BackwardRequest{{}, {}, 3, false, false, {}, false, "forms", {}}).forms, "forms");
  EXPECT_EQ(cross(BackwardResponse{{5, 6}, {}, "forms"}).forms, "forms");
  const auto outputs = cross_rare(StepEnded{{{"a", {}}, {"b", {}}}, {"", "forms"}});
  EXPECT_EQ(outputs.forms.at(0), "");
  EXPECT_EQ(outputs.forms.at(1), "forms");
}

TEST_F(MessageCodecTest, RoutesOfGradients) {
  for (const bool more : {false, true}) {
    BackwardRequest sent{{5, 6}, {7, 8}, 3, true, false, std::vector<at::Tensor>(4), false, {}, {}};
    sent.promised.push_back({3});
    if (more) {
      sent.forms = "forms";
      sent.settings = Settings{false, 9, std::string("more")};
      sent.promised.push_back({0});
      sent.routes.push_back({2, PpRank(1), {70'000, 0xffffffffu}, 5});
    }
    sent.routes.push_back({65, PpRank(3), {4, 1}, 0});
    const auto got = cross(sent);
    EXPECT_EQ(got.forms, sent.forms);
    EXPECT_EQ(got.settings, sent.settings);
    ASSERT_EQ(got.promised.size(), sent.promised.size());
    for (std::size_t i = 0; i < sent.promised.size(); ++i) {
      EXPECT_EQ(got.promised[i].index, sent.promised[i].index);
    }
    ASSERT_EQ(got.routes.size(), sent.routes.size());
    for (std::size_t i = 0; i < sent.routes.size(); ++i) {
      const auto& [a, b] = std::pair(got.routes[i], sent.routes[i]);
      EXPECT_EQ(std::tuple(a.gradient, a.to, a.consumer, a.index),
                std::tuple(b.gradient, b.to, b.consumer, b.index));
    }
  }
  for (const char* forms : {"", "forms"}) {
    BackwardResponse sent{{5, 6}, std::vector<at::Tensor>(2), forms};
    sent.routed = std::string("\1\0", 2);
    const auto got = cross(sent);
    EXPECT_EQ(got.routed, sent.routed);
    EXPECT_EQ(got.forms, sent.forms);
  }
}

TEST_F(MessageCodecTest, PromisesOfARequest) {
  for (const int tensors : {1, 65}) {
    for (const int kind : {0, 1, 2, 3}) {
      auto sent = request_with(tensors, tensors == 1 ? 1 : 300);
      sent.row = kind == 0 ? 0 : 0xf123456789abcdefu;
      sent.place = 70'000;
      sent.keep_outputs = (kind & 1) != 0;
      sent.withhold_outputs = (kind & 2) != 0;
      sent.promised.push_back({0, {PpRank(3), {4, 0xffffffffu}, 5}});
      sent.promised.push_back({9, {PpRank(0), {6, 7}, 8}});
      sent.forms = kind == 3 ? Note("forms") : Note();
      expect_equal(cross(sent), sent);
    }
  }
}

TEST_F(MessageCodecTest, AnyNumberOfArgumentsMayBePromised) {
  for (const int count : {1'300, 1'400, 5'000, 70'000}) {
    auto sent = request_with(3, 300);
    for (int i = 0; i < count; ++i) {
      const auto number = static_cast<std::uint32_t>(i);
      sent.promised.push_back({number, {PpRank(3), {number, 1}, number}, i % 2 == 0});
    }
    sent.releases = {{70'000, 0xffffffffu}};
    expect_equal(cross(sent), sent);
    BackwardRequest backward;
    backward.gradients.resize(static_cast<std::size_t>(count));
    for (int i = 0; i < count; ++i) {
      const auto number = static_cast<std::uint32_t>(i);
      backward.promised.push_back({number});
      backward.routes.push_back({number, PpRank(1), {number, 1}, number});
    }
    const auto got = cross(backward);
    EXPECT_EQ(got.promised.size(), backward.promised.size());
    ASSERT_EQ(got.routes.size(), backward.routes.size());
    EXPECT_EQ(got.routes.back().index, backward.routes.back().index);
  }
}

/// Around the length from which it is counted in the body.
TEST_F(MessageCodecTest, WhatPrecedesABodyMayBeOfAnyLength) {
  const std::size_t note = 5 * sizeof(std::uint64_t);  // the sizes of five notes
  for (const std::size_t length : {65'533, 65'534, 65'535, 65'536, 65'537, 200'000}) {
    ForwardRequest sent = request_with(2, 1);
    sent.settings = {};
    sent.forms = std::string(length - note, 'f');
    expect_equal(cross(sent), sent);
    ForwardResponse response;
    response.forms = sent.forms;
    response.result = {"bytes", {at::ones({2})}};
    response.requires_grad.push_back(true);
    const auto got = cross(response);
    EXPECT_EQ(got.forms, response.forms);
    EXPECT_EQ(got.result.bytes, "bytes");
  }
}

TEST_F(MessageCodecTest, AnyNumberOfTensorsAndSettings) {
  auto sent = request_with(70'000, 300);
  sent.settings = {false, 9, std::string(70'000, 's')};
  expect_equal(cross(sent), sent);
  BackwardRequest backward;
  backward.settings = Settings{false, 9, std::string(70'000, 's')};
  EXPECT_EQ(cross(backward).settings, backward.settings);
  ForwardResponse response;
  response.settings = backward.settings;
  EXPECT_EQ(cross(response).settings, response.settings);
}

TEST_F(MessageCodecTest, WhatIsSaidOfOutputsAlongWithARequest) {
  auto sent = request_with(1, 0);
  sent.releases = {{70'000, 0xffffffffu}, {3, 4}};
  expect_equal(cross(sent), sent);
  sent.promised.push_back({0, {PpRank(3), {4, 5}, 6}, /*ahead=*/true});
  sent.promised.push_back({1, {PpRank(3), {4, 5}, 7}, /*ahead=*/false});
  expect_equal(cross(sent), sent);
  sent.releases.clear();
  sent.keep_outputs = true;
  sent.ahead = {{70'000, PpRank(9), 300}, {0, PpRank(1)}};
  expect_equal(cross(sent), sent);
  for (const bool routes : {false, true}) {
    BackwardRequest backward{{5, 6}, {7, 8}, 3, true, false, std::vector<at::Tensor>(4),
                             false,  {},     {}};
    if (routes) backward.routes.push_back({2, PpRank(1), {7, 8}, 5});
    backward.releases = {{70'000, 0xffffffffu}, {3, 4}};
    const auto got = cross(backward);
    EXPECT_EQ(got.releases, backward.releases);
    EXPECT_EQ(got.routes.size(), backward.routes.size());
  }
}

TEST_F(MessageCodecTest, AnEarlyStart) {
  for (const bool more : {false, true}) {
    BackwardRequest sent;
    sent.gradients.resize(2);
    sent.early = EarlyStart{{70'000, 0xffffffffu}, more ? 1 : -1, 1.0 / 3};
    if (more) {
      sent.promised.push_back({1});
      sent.forms = "forms";
      sent.settings = Settings{false, 9, std::string("more")};
    }
    const auto got = cross(sent);
    ASSERT_TRUE(got.early);
    EXPECT_EQ(got.early->forward, sent.early->forward);
    EXPECT_EQ(got.early->output, sent.early->output);
    EXPECT_EQ(got.early->weight, sent.early->weight);
    EXPECT_EQ(got.promised.size(), sent.promised.size());
    EXPECT_EQ(got.forms, sent.forms);
    EXPECT_EQ(got.settings, sent.settings);
  }
  EXPECT_FALSE(cross(BackwardRequest()).early);
}

TEST_F(MessageCodecTest, OutputsThatArePassedOnOrWithheld) {
  ForwardResponse withheld;
  withheld.withheld = Note("sizes");
  withheld.result.bytes = "b";
  EXPECT_EQ(cross(withheld).withheld, withheld.withheld);
  const auto on = cross_rare(PassOn{{1, 2}, 3, PpRank(4), {5, 6}, 7});
  EXPECT_EQ(on.request, (RequestId{1, 2}));
  EXPECT_EQ(on.output, 3u);
  EXPECT_EQ(on.to, PpRank(4));
  EXPECT_EQ(on.consumer, (RequestId{5, 6}));
  EXPECT_EQ(on.index, 7u);
  for (const bool failed : {false, true}) {
    auto sent =
        PassedOn{PpRank(2), {5, 6}, 7, failed, {at::full({3}, 4)}, std::string("a\0b", 3), !failed};
    sent.unusual = failed;
    sent.ahead = !failed;
    sent.times = failed ? 1 : 300;
    const auto passed = cross_rare(sent);
    EXPECT_EQ(passed.ahead, !failed);
    EXPECT_EQ(passed.times, sent.times);
    EXPECT_EQ(passed.gradient, !failed);
    EXPECT_EQ(passed.unusual, failed);
    EXPECT_EQ(passed.caller, PpRank(2));
    EXPECT_EQ(passed.consumer, (RequestId{5, 6}));
    EXPECT_EQ(passed.index, 7u);
    EXPECT_EQ(passed.failed, failed);
    EXPECT_TRUE(at::equal(passed.tensors.at(0), at::full({3}, 4)));
    EXPECT_EQ(passed.forms, Note(std::string("a\0b", 3)));
  }
  const auto released = cross_rare(ReleaseOutputs{{{1, 2}, {3, 4}}});
  EXPECT_EQ(released.requests, (std::vector<RequestId>{{1, 2}, {3, 4}}));
}

TEST_F(MessageCodecTest, ItsPlainFlagsAreNotTheOppositeOnes) {
  auto sent = request_with(1, 0);
  sent.after_first_backward = false;
  sent.settings = {};
  sent.modes = {};
  sent.modes.autocast[0] = {true, at::kBFloat16};
  expect_equal(cross(sent), sent);
}

TEST_F(MessageCodecTest, ChangedSettingsGoBackAndForth) {
  const Settings few{false, 6, ""};
  const Settings many{false, ~0ull, std::string(300, '\x55')};
  for (const auto& settings : {few, many}) {
    for (const int tensors : {0, 65}) {
      ForwardResponse forward;
      forward.settings = settings;
      BackwardRequest backward;
      backward.settings = settings;
      for (int i = 0; i < tensors; ++i) {
        forward.result.tensors.push_back(at::ones({1}));
        forward.requires_grad.push_back(i == 64);
      }
      forward.result.bytes = "body";
      const auto got = cross(forward);
      EXPECT_EQ(got.settings, settings);
      EXPECT_EQ(got.requires_grad, forward.requires_grad);
      EXPECT_EQ(got.result.bytes, "body");
      EXPECT_EQ(cross(backward).settings, settings);
    }
  }
  EXPECT_FALSE(cross(ForwardResponse()).settings);
  EXPECT_FALSE(cross(BackwardRequest()).settings);
}

TEST_F(MessageCodecTest, AForwardResponse) {
  ForwardResponse sent;
  sent.request = {1, 2};
  sent.record = {3, 4};
  sent.result = {"bytes", {at::ones({3}), at::Tensor()}};
  sent.requires_grad.push_back(true);
  sent.requires_grad.push_back(false);
  const auto got = cross(sent);
  EXPECT_EQ(got.request, sent.request);
  EXPECT_EQ(got.record, sent.record);
  EXPECT_EQ(got.requires_grad, sent.requires_grad);
  EXPECT_EQ(got.result.bytes, "bytes");
  EXPECT_TRUE(at::equal(got.result.tensors.at(0), at::ones({3})));
  EXPECT_FALSE(got.result.tensors.at(1).defined());
}

TEST_F(MessageCodecTest, ABackwardRequestAndItsResponse) {
  for (const bool flag : {true, false}) {
    BackwardRequest sent;
    sent.request = {5, 6};
    sent.record = {7, 8};
    sent.microbatch = 3;
    sent.after_first_backward = flag;
    sent.keep_graph = !flag;
    sent.gradients = {at::Tensor(), at::ones({2})};
    sent.only_inputs = flag;
    const auto got = cross(sent);
    EXPECT_EQ(got.request, sent.request);
    EXPECT_EQ(got.record, sent.record);
    EXPECT_EQ(got.microbatch, 3);
    EXPECT_EQ(got.after_first_backward, flag);
    EXPECT_EQ(got.keep_graph, !flag);
    EXPECT_EQ(got.only_inputs, flag);
    EXPECT_FALSE(got.gradients.at(0).defined());
    EXPECT_TRUE(at::equal(got.gradients.at(1), at::ones({2})));
  }
  const auto answer = cross(BackwardResponse{{5, 6}, {at::zeros({4})}, {}});
  EXPECT_EQ(answer.request, (RequestId{5, 6}));
  EXPECT_TRUE(at::equal(answer.gradients.at(0), at::zeros({4})));
}

TEST_F(MessageCodecTest, ABackwardThatIsToHaveAGraph) {
  BackwardRequest sent;
  sent.gradients = {at::ones({2}), at::Tensor(), at::ones({1})};
  sent.create_graph = sent.only_inputs = true;
  sent.history = std::string("\1\0\0", 3);
  sent.forms = "forms";
  sent.promised.push_back({1});
  const auto got = cross(sent);
  EXPECT_TRUE(got.create_graph);
  EXPECT_EQ(got.history, sent.history);
  EXPECT_EQ(got.forms, "forms");
  EXPECT_EQ(got.promised.size(), 1);
  EXPECT_FALSE(cross(BackwardRequest()).create_graph);

  for (const bool routed : {false, true}) {
    BackwardResponse response{{5, 6}, {at::zeros({4}), at::ones({1})}, "forms"};
    if (routed) response.routed = std::string("\0\1", 2);
    response.record = {7, 8};
    response.requires_grad = std::string("\1\0", 2);
    response.inner = std::string("\0\1", 2);
    const auto answer = cross(response);
    EXPECT_EQ(answer.record, (RecordId{7, 8}));
    EXPECT_EQ(answer.requires_grad, response.requires_grad);
    EXPECT_EQ(answer.inner, response.inner);
    EXPECT_EQ(answer.routed, response.routed);
    EXPECT_EQ(answer.forms, "forms");
  }
  EXPECT_FALSE(cross(BackwardResponse{{5, 6}, {at::zeros({4})}, "forms"}).record);
}

TEST_F(MessageCodecTest, WhereABackwardEndsAndWhatItTakes) {
  BackwardRequest sent;
  sent.leaves_rest_to = {3, 1};
  sent.takes_rest_of = {{4, 1}, {70000, 2}};
  sent.forms = "forms";
  const auto got = cross(sent);
  EXPECT_EQ(got.leaves_rest_to, sent.leaves_rest_to);
  EXPECT_EQ(got.takes_rest_of, sent.takes_rest_of);
  EXPECT_EQ(got.forms, "forms");
  EXPECT_FALSE(cross(BackwardRequest()).leaves_rest_to);

  BackwardResponse response{{5, 6}, {at::zeros({4})}, "forms"};
  EXPECT_FALSE(cross(response).left_rest);
  response.left_rest = true;
  EXPECT_TRUE(cross(response).left_rest);
}

TEST_F(MessageCodecTest, TheRareKinds) {
  const auto error = cross_rare(ErrorResponse{{1, 9}, {PpRank(2), "kaboom", 17}});
  EXPECT_EQ(error.request, (RequestId{1, 9}));
  EXPECT_EQ(error.failure.rank, PpRank(2));
  EXPECT_EQ(error.failure.text, "kaboom");
  EXPECT_EQ(error.failure.type, 17);
  EXPECT_FALSE(error.failure.of_input);
  EXPECT_TRUE(cross_rare(ErrorResponse{{}, {PpRank(2), "", 0, true}}).failure.of_input);
  EXPECT_EQ(cross_rare(ReleaseRecord{{4, 5}}).record, (RecordId{4, 5}));
  EXPECT_EQ(cross_rare(ForwardDone{3}).microbatch, 3);
  EXPECT_EQ(cross_rare(MicrobatchDone{4}).microbatch, 4);
  EXPECT_EQ(cross_rare(FinishGradients{}).buffers, "");
  const auto finished = cross_rare(FinishGradients{"facts", "report"});
  EXPECT_EQ(finished.facts, "facts");
  EXPECT_EQ(finished.buffers, "report");
  const auto ended = cross_rare(StepEnded{{}, {}, "changes"});
  EXPECT_EQ(ended.buffers, "changes");
  EXPECT_FALSE(ended.replayed);
  const auto replayed = cross_rare(StepEnded{{}, {}, "", true, "facts"});
  EXPECT_TRUE(replayed.replayed);
  EXPECT_EQ(replayed.facts, "facts");
  for (const bool flag : {false, true}) {
    const auto other = cross_rare(StepEnded{{}, {}, "", false, "", flag, !flag});
    EXPECT_EQ(other.fastest, flag);
    EXPECT_EQ(other.keep_order, !flag);
    EXPECT_FALSE(other.replayed);
    EXPECT_FALSE(other.in_order);
  }
  cross_rare(RankLeft{});
  cross_rare(StallQuestion{});
  EXPECT_EQ(cross_rare(StallAnswer{"waits for b"}).text, "waits for b");
  EXPECT_EQ(cross_rare(StepFailed{{PpRank(1), "x"}}).failure.text, "x");
}

/// With anything else that such a message may say, or without.
TEST_F(MessageCodecTest, ThatMicrobatchesEnterAModuleInOrder) {
  for (const bool flag : {false, true}) {
    for (const char* rest : {"", "rest"}) {
      const auto finished = cross_rare(FinishGradients{rest, rest, flag});
      EXPECT_EQ(finished.in_order, flag);
      EXPECT_EQ(finished.facts, rest);
      EXPECT_EQ(finished.buffers, rest);
    }
    StepEnded sent;
    sent.in_order = flag;
    sent.keep_order = !flag;
    const auto ended = cross_rare(sent);
    EXPECT_EQ(ended.in_order, flag);
    EXPECT_EQ(ended.keep_order, !flag);
    EXPECT_FALSE(ended.replayed);
    EXPECT_FALSE(ended.fastest);
  }
}

TEST_F(MessageCodecTest, OutputsOfAllMicrobatches) {
  const auto got = cross_rare(StepEnded{{{"a", {at::ones({1}), at::zeros({2})}}, {"", {}}}, {}});
  ASSERT_EQ(got.outputs.size(), 2u);
  EXPECT_EQ(got.outputs[0].bytes, "a");
  ASSERT_EQ(got.outputs[0].tensors.size(), 2u);
  EXPECT_TRUE(at::equal(got.outputs[0].tensors[1], at::zeros({2})));
  EXPECT_TRUE(got.outputs[1].tensors.empty());
}

TEST_F(MessageCodecTest, WhatIsNoneOfOursIsAnError) {
  const std::byte nonsense[24] = {};
  sender_.send(GlobalRank(1), d2d::Port::kServer, nonsense, {}, {});
  sender_.send(GlobalRank(1), d2d::Port::kServer, std::span(nonsense, 3), {}, {});
  for (int i = 0; i < 10; ++i) receiver_.poll();
  EXPECT_FALSE(arrived_.has_value());
  EXPECT_NE(failure_, "");
}

}  // namespace
}  // namespace smp::server
