// A load that is refused changes nothing: neither the model, wherever it is, nor the optimizer, nor
// the random numbers. And it says which names, values and ranks are at odds.
#include <gmock/gmock.h>
#include <torch/torch.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "api/two_ranks.h"
#include "checkpoint/model_state_testing.h"

namespace smp::model_state {
namespace refused_loads_test {

using testing::AllOf;
using testing::HasSubstr;

/// The first model's buffers go where another dict's may not: one row for all, and memory that
/// cannot be written.
struct OddImpl : torch::nn::Module {
  OddImpl() {
    first = register_module("first", nn::Linear(3, 3));
    wide = register_buffer("wide", torch::ones({1, 3}).expand({4, 3}));
    windows = register_buffer("windows", torch::arange(5, torch::kFloat).unfold(0, 3, 1));
    last = register_module("last", nn::Linear(3, 3));
  }
  Tensor forward(const Tensor& x) { return last(first(x)) * wide[0] + windows[0]; }
  nn::Linear first{nullptr}, last{nullptr};
  Tensor wide, windows;
};
SMP_MODULE(Odd);

Odd make_odd(std::uint64_t seed, bool delayed = false) {
  std::optional<delay_param_initialization> delay;
  torch::manual_seed(seed);
  if (delayed) delay.emplace();
  return Odd();
}

StateDict odd_dict(std::uint64_t seed) {
  StateDict copies;
  for (const auto& [name, tensor] : state_dict(*make_odd(seed)))
    copies.insert(name, tensor.clone());
  return copies;
}

StateDict with(StateDict dict, const std::string& name, const Tensor& tensor) {
  StateDict changed;
  for (const auto& [other, value] : dict) changed.insert(other, other == name ? tensor : value);
  return changed;
}

/// A trained model and its optimizer, and what a refused load must leave as it is.
template <class Model>
class Training {
 public:
  explicit Training(Model net)
      : net_(net),
        model_(net),
        optimizer_(model_,
                   torch::optim::Adam(model_.parameters(), torch::optim::AdamOptions(0.1))) {}
  DistributedModel<Model>& model() { return model_; }
  void step(const Tensor& x) {
    auto run = smp::step([&](const Tensor& rows) {
      const auto loss = model_(rows).square().sum();
      model_.backward(loss);
      return loss;
    });
    run(x);
    optimizer_.step();
    optimizer_.zero_grad();
  }
  /// Runs what is refused, and returns its text.
  std::string refused(const std::function<void()>& load) {
    const auto before = everything();
    auto text = refusal<Error>(load);
    expect_alike(everything(), before);
    return text;
  }

 private:
  std::vector<StateDict> everything() {
    StateDict random{{"generator", at::detail::getDefaultCPUGenerator().get_state()}};
    return {model_.state_dict(kAllPpRanks), optimizer_state_dict(model_, optimizer_, kAllPpRanks),
            random};
  }
  static void expect_alike(const std::vector<StateDict>& ours,
                           const std::vector<StateDict>& theirs) {
    for (std::size_t i = 0; i < ours.size(); ++i) expect_same(ours[i], theirs[i]);
  }

  Model net_;
  DistributedModel<Model> model_;
  DistributedOptimizer<torch::optim::Adam> optimizer_;
};

TEST(RefusedLoads, OfTwoValuesForOneTensorFromSeveralRanks) {
  const auto values = plain_dict(9);
  for (const bool placed : {false, true}) {
    for (const bool delayed : {false, true}) {
      on_ranks(3, [&] {
        std::optional<delay_param_initialization> delay;
        torch::manual_seed(kSeed);
        if (delayed) delay.emplace();
        Net net;
        net->to(torch::kDouble);
        delay.reset();
        DistributedModel model(net);
        spread(model);
        if (placed) model.place();
        // Rank 1 gives one of the names, rank 2 the rest.
        auto part = rank() == 2 ? values : StateDict();
        part.erase("head.weight");
        auto head = values.at("head.weight").clone();
        head[2][1] = 55;
        if (rank() == 1) part.insert("head.weight", head);
        const auto text = refusal([&] { model.load_state_dict(part); });
        std::ostringstream wrong;
        wrong.precision(9);
        wrong << "element [2, 1] is " << values.at("table.weight")[2][1].item<double>()
              << " in table.weight (rank 2) and 55 in head.weight (rank 1)";
        EXPECT_THAT(text,
                    AllOf(HasSubstr("one tensor under the names table.weight and head.weight"),
                          HasSubstr(wrong.str())));
        model.place();
        expect_same(model.state_dict(kAllPpRanks), plain_dict());
        model.load_state_dict(part, /*strict=*/false);  // where the last name counts
        EXPECT_TRUE(torch::equal(model.state_dict(kAllPpRanks).at("table.weight"), head));
        if (rank() == 1) part.at("head.weight").copy_(values.at("table.weight"));
        model.load_state_dict(part);
        expect_same(model.state_dict(kAllPpRanks), values);
      });
    }
  }
}

/// Whoever owns it.
TEST(RefusedLoads, OfTwoValuesUnderOneName) {
  for (const bool placed : {false, true}) {
    for (const char* name : {"blocks.0.linear.weight", "blocks.1.linear.weight", "table.weight"}) {
      on_ranks(3, [&] {
        DistributedModel model(make_net());
        spread(model);
        if (placed) model.place();
        auto own = plain_dict(9);
        if (rank() == 2) own.at(name)[1][1] = 44;
        EXPECT_THAT(
            refusal([&] { model.load_state_dict(own); }),
            AllOf(HasSubstr("ranks 0 and 2 have different values of \"" + std::string(name)),
                  HasSubstr("element [1, 1] is "), HasSubstr("and 44 on rank 2")));
        expect_same(model.state_dict(kAllPpRanks), plain_dict());
      });
    }
  }
}

/// One row for all takes a dict whose rows are equal; windows take what overlaps alike.
TEST(RefusedLoads, OfRowsThatShareMemory) {
  for (const int stages : {1, 2}) {
    for (const int replicas : {1, 2}) {
      Config config;
      config.pipeline_parallel_degree = stages;
      config.plan_cache = "off";
      run_local(
          stages * replicas,
          [&] {
            Training<Odd> training(make_odd(3));
            auto& model = training.model();
            if (stages > 1) model.set_partition("last", 1);
            training.step(torch::ones({4, 3}));
            auto right = odd_dict(4);
            const auto rows = torch::arange(12, torch::kFloat).reshape({4, 3});
            for (const bool everywhere : {true, false}) {
              const auto given = [&](const StateDict& dict) {
                return everywhere || pp_rank() == stages - 1 ? dict : StateDict();
              };
              EXPECT_THAT(training.refused(
                              [&] { model.load_state_dict(given(with(right, "wide", rows))); }),
                          AllOf(HasSubstr("wide: the model's tensor"), HasSubstr("is expanded"),
                                HasSubstr("element [1, 0] is 3, and would be 0")));
              EXPECT_THAT(
                  training.refused([&] {
                    model.load_state_dict(given(with(right, "windows", rows.slice(0, 0, 3))));
                  }),
                  AllOf(HasSubstr("windows: the model's tensor"), HasSubstr("is expanded")));
            }
            const auto equal_rows = torch::tensor({2.f, NAN, 3.f}).expand({4, 3}).clone();
            const auto overlapping = torch::arange(5, 10, torch::kFloat).unfold(0, 3, 1).clone();
            right = with(with(right, "wide", equal_rows), "windows", overlapping);
            model.load_state_dict(right);
            const auto after = model.state_dict(kAllPpRanks);
            for (const auto& [name, tensor] : right) {
              EXPECT_TRUE(torch::equal(after.at(name).nan_to_num(77), tensor.nan_to_num(77)))
                  << name;
            }
          },
          config);
    }
  }
}

TEST(RefusedLoads, OfAFileWithRowsThatDiffer) {
  const auto path = testing::TempDir() + "rows." + std::to_string(getpid()) + ".safetensors";
  save_safetensors(with(odd_dict(4), "wide", torch::rand({4, 3})), path);
  for (const bool delayed : {false, true}) {
    on_ranks(2, [&] {
      auto net = make_odd(3, delayed);
      DistributedModel model(net);
      model.set_partition("last", 1);
      EXPECT_THAT(refusal([&] { load_safetensors(model, path); }), HasSubstr("wide: the model's"));
      EXPECT_THAT(refusal([&] { model.load_state_dict(load_safetensors(path)); }),
                  HasSubstr("wide: the model's"));
      model.place();
      expect_same(model.state_dict(kAllPpRanks), odd_dict(3));
      auto own = odd_dict(5);
      load_state_dict(*make_odd(6), own);
      EXPECT_THAT(refusal([&] {
                    load_state_dict(*make_odd(6), with(own, "wide", torch::rand({4, 3})));
                  }),
                  HasSubstr("wide: the model's"));
    });
  }
  std::filesystem::remove(path);
}

/// With delayed initialisation too: it is read when it is loaded.
TEST(RefusedLoads, OfAFileThatIsDamaged) {
  const auto path = testing::TempDir() + "late." + std::to_string(getpid()) + ".safetensors";
  save_safetensors(odd_dict(4), path);
  {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-3, std::ios::end);
    file.put('\x55');
  }
  for (const bool delayed : {false, true}) {
    on_ranks(2, [&] {
      DistributedModel model(make_odd(3, delayed));
      model.set_partition("last", 1);
      EXPECT_THAT(refusal([&] { load_safetensors(model, path); }), HasSubstr("damaged values of"));
      model.place();
      expect_same(model.state_dict(kAllPpRanks), odd_dict(3));
    });
  }
  std::filesystem::remove(path);
}

/// A name of a file is foreign text: what a terminal would obey is written out.
TEST(RefusedLoads, SayNamesWithoutControlCharacters) {
  const std::string name = "a\x1b[2J\nb";
  const auto path = testing::TempDir() + "names." + std::to_string(getpid()) + ".safetensors";
  save_safetensors({{name, torch::ones({2})}}, path);
  struct Named : torch::nn::Module {
    explicit Named(const std::string& name) { register_parameter(name, torch::ones({3})); }
  };
  const testing::Matcher<std::string> shown = HasSubstr("a\\x1b[2J\\x0ab");
  Named same(name), another("other");
  const auto dict = load_safetensors(path);
  EXPECT_THAT(refusal([&] { load_state_dict(same, dict); }), AllOf(HasSubstr("shape of"), shown));
  EXPECT_THAT(refusal([&] { load_state_dict(another, dict); }),
              AllOf(HasSubstr("unexpected"), shown));
  std::filesystem::remove(path);
}

/// Tensors of the model that nothing can be written to come after others that could be.
TEST(RefusedLoads, IntoTensorsThatCannotBeWritten) {
  struct Late : torch::nn::Module {
    explicit Late(const Tensor& buffer) {
      register_parameter("weight", torch::ones({3}));
      register_buffer("odd", buffer);
    }
  };
  const auto inference = [] {
    const c10::InferenceMode mode;
    return torch::ones({3});
  }();
  auto lost = torch::ones({3});
  lost.storage().unsafeGetStorageImpl()->set_nbytes(4);
  const std::vector<std::pair<Tensor, const char*>> cases{
      {torch::ones({3}).to_sparse(), "odd of the model is no dense tensor"},
      {torch::ones({3}, torch::kMeta), "odd of the model is a meta tensor"},
      {inference, "odd of the model was made in inference mode"},
      {lost, "odd of the model has lost its memory: 4 bytes are left of 12"}};
  const StateDict dict{{"weight", torch::zeros({3})}, {"odd", torch::zeros({3})}};
  for (const auto& [buffer, text] : cases) {
    auto plain = std::make_shared<Late>(buffer);
    EXPECT_THAT(refusal([&] { load_state_dict(*plain, dict); }), HasSubstr(text));
    EXPECT_EQ(plain->parameters()[0].sum().item<float>(), 3) << text;
    on_ranks(1, [&, &buffer = buffer, &text = text] {
      auto net = std::make_shared<Late>(buffer);
      DistributedModel model(net);
      EXPECT_THAT(refusal([&] { model.load_state_dict(dict); }), HasSubstr(text));
      EXPECT_EQ(net->parameters()[0].sum().item<float>(), 3) << text;
    });
  }
}

TEST(RefusedLoads, OfTensorsWithoutValues) {
  on_ranks(2, [] {
    auto net = make_net();
    StateDict references;  // the model's own, not those of state_dict()
    for (const auto& item : net->named_parameters()) references.insert(item.key(), item.value());
    DistributedModel model(net);
    spread(model);
    const auto delayed = [] {
      const delay_param_initialization delay;
      return torch::ones({4}, torch::kDouble);
    }();
    EXPECT_THAT(refusal([&] {
                  model.load_state_dict({{"blocks.0.scale", delayed}}, false);
                }),
                HasSubstr("blocks.0.scale needs the values of a tensor that has none yet"));
    model.place();
    EXPECT_THAT(refusal([&] { model.load_state_dict(references, false); }),
                HasSubstr("lives on another rank and has no values here"));
    const auto meta = torch::ones({4}, torch::kMeta);
    EXPECT_THAT(refusal([&] {
                  model.load_state_dict({{"blocks.0.scale", meta}}, false);
                }),
                HasSubstr("blocks.0.scale is a meta tensor"));
    const auto packed = torch::empty({4}, torch::kFloat4_e2m1fn_x2);
    EXPECT_THAT(refusal([&] {
                  model.load_state_dict({{"blocks.0.scale", packed}}, false);
                }),
                HasSubstr("dtype of blocks.0.scale: Float4_e2m1fn_x2, but the model has Double"));
    expect_same(model.state_dict(kAllPpRanks), plain_dict());
  });
}

/// Of any type: bits of a NaN, and of types that LibTorch does not compare.
TEST(TiedTensors, WithNaNsLoadWhatTheyWere) {
  struct Two : torch::nn::Module {
    explicit Two(const Tensor& value) {
      register_parameter("weight", torch::ones({1}));
      register_buffer("a", value);
      register_buffer("b", value);
    }
  };
  const auto path = testing::TempDir() + "ties." + std::to_string(getpid()) + ".safetensors";
  for (const auto type :
       {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kFloat8_e4m3fn, at::kFloat8_e5m2,
        at::kFloat8_e8m0fnu, at::kFloat8_e4m3fnuz, at::kFloat8_e5m2fnuz, at::kUInt16, at::kUInt32,
        at::kUInt64, at::kBool, at::kComplexFloat, at::kFloat4_e2m1fn_x2}) {
    SCOPED_TRACE(c10::toString(type));
    auto value = torch::tensor({1., std::nan(""), 0., 2.});
    if (type == at::kFloat4_e2m1fn_x2) {
      value = torch::tensor({0x12, 0x3f}, torch::kByte).view(type);
    } else {
      value = (c10::isFloatingType(type) || c10::isComplexType(type) ? value : value.nan_to_num(3))
                  .to(type);
    }
    on_ranks(1, [&] {
      DistributedModel model(std::make_shared<Two>(value.clone()));
      model.place();
      save_safetensors(model, path);
      load_safetensors(model, path);
      auto dict = load_safetensors(path);
      dict.erase("b");
      dict.insert("b", dict.at("a").clone());  // the same values elsewhere
      model.load_state_dict(dict);
      load_state_dict(model.base_module(), dict);
      auto bytes = dict.at("b").clone();
      static_cast<char*>(bytes.mutable_data_ptr())[0] ^= 1;
      EXPECT_THAT(refusal([&] { model.load_state_dict(with(dict, "b", bytes)); }),
                  HasSubstr("under the names a and b, but there are different values"));
    });
  }
  std::filesystem::remove(path);
}

/// A NaN has another sign where another instruction computed it.
TEST(TiedTensors, WithNaNsOfOtherBitsAreEqual) {
  auto values = plain_dict(9);
  values.at("table.weight")[1][1] = NAN;
  values.erase("head.weight");
  auto other = values.at("table.weight").clone();
  other.view(torch::kLong)[1][1].bitwise_or_(std::numeric_limits<std::int64_t>::min() + 12345);
  ASSERT_FALSE(
      torch::equal(other.view(torch::kLong), values.at("table.weight").view(torch::kLong)));
  on_ranks(2, [&] {
    DistributedModel model(make_net());
    spread(model);
    auto own = values;
    own.insert("head.weight", other);
    model.load_state_dict(own);
    if (rank() == 1) own = with(own, "table.weight", other);
    model.load_state_dict(own);
    model.place();
    auto part = rank() == 0 ? values : StateDict{{"head.weight", other}};
    model.load_state_dict(part);
    EXPECT_TRUE(model.state_dict(kAllPpRanks).at("head.weight")[1][1].isnan().item<bool>());
  });
}

}  // namespace refused_loads_test
}  // namespace smp::model_state
