// checkpoint/aliases.cpp: the same elements of the same storage are the same tensor.
#include "checkpoint/aliases.h"

#include <map>
#include <tuple>

#include "base/check.h"
#include "base/text/excerpt.h"
#include "base/text/utf8.h"
#include "config/json.h"

namespace smp::checkpoints {

std::pair<std::vector<std::size_t>, Aliases> find_aliases(const StateDict& dict) {
  using Key = std::tuple<const void*, c10::ScalarType, std::vector<std::int64_t>,
                         std::vector<std::int64_t>, bool, bool>;
  std::map<Key, std::string> first_name;
  std::vector<std::size_t> written;
  Aliases aliases;
  std::size_t number = 0;
  for (const auto& [name, tensor] : dict) {
    const std::size_t i = number++;
    if (tensor.numel() > 0 && tensor.layout() == at::kStrided) {
      const auto [found, is_new] = first_name.emplace(
          Key{tensor.const_data_ptr(), tensor.scalar_type(), tensor.sizes().vec(),
              tensor.strides().vec(), tensor.is_conj(), tensor.is_neg()},
          name);
      if (!is_new) {
        aliases.emplace_back(name, found->second);
        continue;
      }
    }
    written.push_back(i);
  }
  return {written, aliases};
}

void put_aliases(const Aliases& aliases, Metadata& metadata) {
  if (aliases.empty()) return;
  base::Json::object_t json;
  for (const auto& [alias, name] : aliases) {
    for (const auto& text : {alias, name}) {
      SMP_REQUIRE(base::is_utf8(text), "the name \"", base::excerpt(text),
                  "\" is no UTF-8 text, which safetensors files consist of: it cannot be saved; "
                  "rename it");
    }
    json.emplace_back(alias, name);
  }
  metadata[kAliasKey] = base::Json(std::move(json)).dump();
}

Aliases take_aliases(Metadata& metadata, const std::string& name) {
  const auto found = metadata.find(kAliasKey);
  if (found == metadata.end()) return {};
  const auto json = base::find_json(found->second);
  SMP_REQUIRE(json && json->is_object(), name, ": the metadata \"", kAliasKey,
              "\" is no JSON object");
  Aliases aliases;
  for (const auto& [alias, target] : json->items()) {
    SMP_REQUIRE(target.is_string(), name, ": the metadata \"", kAliasKey, "\" names no tensor for ",
                base::excerpt(alias));
    aliases.emplace_back(alias, target.get<std::string>());
  }
  metadata.erase(found);
  return aliases;
}

}  // namespace smp::checkpoints
