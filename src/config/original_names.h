// config/original_names.h: the calls and settings of the original library (SageMaker's model
// parallelism 1.x), and what a program writes here instead. docs/migrating.md is made of it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace smp::base {

/// A call, an argument of one, or a variable of the environment.
struct OriginalName {
  std::string_view name;  ///< "smp.send", an argument as "DistributedModel(trace_device)"
  std::string_view here;  ///< what to write here; empty: there is nothing of it
  std::string_view note;  ///< the form or a default that differs, or why there is nothing
  std::string_view test;  ///< the test that shows it: "Suite.Name"
};

struct OriginalSection {
  std::string_view title;
  std::vector<OriginalName> names;
};

/// A setting. Whether it is a key here, needless or still to come is known by its name
/// (config_keys.h, needless_keys.h).
struct OriginalKey {
  std::string_view name;
  std::string_view default_value;  ///< as JSON; empty: none
  std::string_view note;           ///< what differs, beside the default
  std::string_view test;           ///< the test that shows what the key does: "Suite.Name"
};

const std::vector<OriginalSection>& original_names();
const std::vector<OriginalKey>& original_keys();

/// What a program writes instead of an argument that is called `argument`, for those who give it as
/// a setting; empty: the original has none of that name.
std::string instead_of_argument(std::string_view argument);
/// What a program writes instead of `value` of the setting `key`; empty: the table has no row of
/// it.
std::string instead_of_value(std::string_view key, std::string_view value);

}  // namespace smp::base
