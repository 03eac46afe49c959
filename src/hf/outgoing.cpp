// hf/outgoing.cpp: see the header.
#include "hf/outgoing.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "config/json.h"
#include "hf/family_names.h"

namespace smp::hf {
namespace {

constexpr std::size_t kMissing = static_cast<std::size_t>(-1);

/// Returns the parts that a tensor is published as: of tied names the first.
std::vector<std::pair<Part, std::string>> published_as(const OwnTensor& tensor,
                                                       const NameMap& names) {
  std::vector<std::pair<Part, std::string>> all;
  for (const auto& name : tensor.names) {
    auto part = published_part(names, name);
    const bool known =
        std::any_of(all.begin(), all.end(), [&](const auto& other) { return other.first == part; });
    if (!known && !is_buffer(names.family(), part.name)) all.emplace_back(std::move(part), name);
  }
  const auto has = [&](std::string_view name) {
    return std::any_of(all.begin(), all.end(),
                       [&](const auto& one) { return one.first.name == name; });
  };
  for (const auto& tie : ties_of(names.family())) {
    if (!has(tie.name)) continue;
    std::erase_if(all, [&](const auto& one) { return one.first.name == tie.copy; });
  }
  return all;
}

/// A published tensor of which some parts are known.
struct Draft {
  Joined joined;
  std::vector<std::string> names;  // of the model, of each part; empty: missing
  std::size_t first = 0;           // number of the part that came first
};

void add_part(Draft& draft, const Part& part, const std::string& name, const OwnTensor& tensor,
              std::size_t number) {
  auto& own_name = draft.names.at(part.index);
  SMP_REQUIRE(own_name.empty(), "hf::save: \"", own_name, "\" and \"", name,
              "\" of the model would both be published as \"", part.name, "\"");
  const auto& info = draft.joined.info;
  SMP_REQUIRE(tensor.dtype == info.dtype && tensor.sizes == info.sizes, "hf::save: \"", name,
              "\" is ", tensor.dtype, ' ', c10::IntArrayRef(tensor.sizes), ", and \"",
              draft.names[draft.first], "\" ", info.dtype, ' ', c10::IntArrayRef(info.sizes),
              ", and both are parts of \"", part.name, "\"");
  own_name = name;
  draft.joined.parts[part.index] = number;
}

/// Gives a complete draft the sizes of the whole.
Joined completed(Draft draft, const NameMap& names) {
  auto& [info, parts, turned] = draft.joined;
  const auto& first = draft.names[draft.first];
  const auto all = own_names(names, info.name).first;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    SMP_REQUIRE(parts[i] != kMissing, "hf::save: \"", info.name, "\" is made of ", parts.size(),
                " tensors; the model has \"", first, "\", and no \"", all.at(i), "\"");
  }
  SMP_REQUIRE(!turned || info.sizes.size() == 2, "hf::save: \"", first, "\" is ",
              c10::IntArrayRef(info.sizes), ", expected [outputs, inputs]");
  if (parts.size() > 1) {
    SMP_REQUIRE(!info.sizes.empty(), "hf::save: \"", first, "\" is a part, and has no axis");
    info.sizes[0] *= static_cast<std::int64_t>(parts.size());
  }
  if (turned) std::swap(info.sizes[0], info.sizes[1]);
  return std::move(draft.joined);
}

const Joined* find(const std::vector<Joined>& all, std::string_view name) {
  const auto found = std::find_if(all.begin(), all.end(),
                                  [&](const Joined& one) { return one.info.name == name; });
  return found == all.end() ? nullptr : &*found;
}

void require_tied(const std::vector<Joined>& all, Family family) {
  for (const auto& tie : ties_of(family)) {
    SMP_REQUIRE(tie.may_differ || find(all, tie.copy) == nullptr || find(all, tie.name) == nullptr,
                "hf::save: the model has two tensors for \"", tie.name, "\" and \"", tie.copy,
                "\", which are one in transformers; register one tensor under both names, or once");
  }
}

/// Returns the sizes of `config` with the flag of the tie as the tensors have it.
Config::Sizes sizes_of(const Config& config, bool head) {
  auto sizes = config.sizes();
  std::visit([&](auto& own) { own.tie_word_embeddings = !head; }, sizes);
  return sizes;
}

std::string_view dtype_text(c10::ScalarType dtype) {
  switch (dtype) {
    case c10::ScalarType::Half:
      return "float16";
    case c10::ScalarType::BFloat16:
      return "bfloat16";
    case c10::ScalarType::Double:
      return "float64";
    default:
      return "float32";
  }
}

}  // namespace

std::vector<Joined> joined_tensors(const std::vector<OwnTensor>& own, const NameMap& names) {
  std::vector<Draft> drafts;
  std::map<std::string, std::size_t> numbers;
  for (std::size_t i = 0; i < own.size(); ++i) {
    for (const auto& [part, name] : published_as(own[i], names)) {
      const auto [place, is_new] = numbers.emplace(part.name, drafts.size());
      if (is_new) {
        drafts.push_back({{{part.name, own[i].dtype, own[i].sizes},
                           std::vector<std::size_t>(part.count, kMissing),
                           part.turned},
                          std::vector<std::string>(part.count),
                          part.index});
      }
      auto& draft = drafts[place->second];
      SMP_REQUIRE(draft.names.size() == part.count,
                  "hf::save: the rules disagree on how many "
                  "tensors \"",
                  part.name, "\" is made of: ", draft.names.size(), " or ", part.count);
      add_part(draft, part, name, own[i], i);
    }
  }
  std::vector<Joined> all;
  for (auto& draft : drafts) all.push_back(completed(std::move(draft), names));
  require_tied(all, names.family());
  return all;
}

bool has_head(const std::vector<Joined>& all, Family family) {
  const auto& tie = ties_of(family).front();
  return find(all, tie.copy) != nullptr;
}

void require_published(const std::vector<Joined>& all, const Config& config) {
  const auto expected = published_tensors(Config(sizes_of(config, has_head(all, config.family()))));
  std::map<std::string, const std::vector<std::int64_t>*> known;
  for (const auto& tensor : expected) known.emplace(tensor.name, &tensor.sizes);
  std::string complaints;
  for (const auto& one : all) {
    const auto found = known.find(one.info.name);
    if (found == known.end()) {
      if (!may_be_left_out(config.family(), one.info.name)) {
        complaints += base::concat("\n  unexpected: ", one.info.name);
      }
      continue;
    }
    if (*found->second != one.info.sizes) {
      complaints +=
          base::concat("\n  shape of ", one.info.name, ": ", c10::IntArrayRef(one.info.sizes),
                       ", but config.json wants ", c10::IntArrayRef(*found->second));
    }
    known.erase(found);
  }
  for (const auto& [name, sizes] : known) complaints += base::concat("\n  missing: ", name);
  SMP_REQUIRE(complaints.empty(),
              "hf::save: transformers would expect other tensors of a model with this config.json; "
              "nothing was written.",
              complaints);
}

std::string config_text(const Config& config, const std::vector<Joined>& all) {
  auto json = base::parse_json(config.json(), "config.json");
  const bool head = has_head(all, config.family());
  if (config.family() == Family::kT5 && !json.contains("scale_decoder_outputs")) {
    json["scale_decoder_outputs"] = config.t5().scales_outputs();
  }
  json["tie_word_embeddings"] = !head;
  const auto floating = std::find_if(all.begin(), all.end(), [](const Joined& one) {
    return c10::isFloatingType(one.info.dtype);
  });
  if (floating != all.end()) {
    json.erase("torch_dtype");  // its older name
    json["dtype"] = dtype_text(floating->info.dtype);
  }
  return json.dump(2) + "\n";
}

}  // namespace smp::hf
