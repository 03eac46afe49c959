// hf/hf.cpp: dicts from and into files of published form, on one rank.
#include "smp/hf.h"

#include <memory>

#include "base/check.h"
#include "checkpoint/aliases.h"
#include "checkpoint/load_plan.h"
#include "hf/family_names.h"
#include "hf/incoming.h"
#include "hf/publisher.h"

namespace smp::hf {

bool has_own_head(const std::string& path, Family family) {
  const PublishedFiles files(path, family);
  const auto& tie = ties_of(family).front();
  const auto head = files.find(tie.copy);
  const auto table = files.find_tied(std::string(tie.name));
  return head && table != head && files.difference(*table, *head);
}

StateDict read(const std::string& path, const NameMap& names) {
  const auto files = std::make_shared<const PublishedFiles>(path, names.family());
  const Incoming incoming(files, names, names_in(*files, names));
  incoming.require_ties();
  StateDict dict;
  for (std::size_t i = 0; i < incoming.tensors().size(); ++i) {
    dict.insert(incoming.tensors()[i].name, incoming.read(i));
  }
  return dict;
}

SaveReport save(const StateDict& dict, const std::string& folder, const NameMap& names,
                const SaveOptions& options) {
  const auto [written, aliases] = checkpoints::find_aliases(dict);
  const auto item = [&](std::size_t i) { return dict.begin() + static_cast<std::ptrdiff_t>(i); };
  std::vector<OwnTensor> own;
  for (const std::size_t i : written) {
    const auto& [name, tensor] = *item(i);
    const auto problem = checkpoints::problem_with_values(name, tensor);
    SMP_REQUIRE_AS(UnsupportedError, problem.empty(), "hf::save: ", problem);
    own.push_back({{name}, tensor.scalar_type(), tensor.sizes().vec()});
    for (const auto& [alias, of] : aliases) {
      if (of == name) own.back().names.push_back(alias);
    }
  }
  Publisher publisher(own, folder, names, options);
  for (std::size_t k = 0; k < written.size(); ++k) publisher.write(k, item(written[k])->second);
  return publisher.commit();
}

}  // namespace smp::hf
