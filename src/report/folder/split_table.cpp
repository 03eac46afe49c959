// report/folder/split_table.cpp: one object a step, one row an argument.
#include "report/folder/split_table.h"

#include "base/check.h"
#include "config/json.h"

namespace smp::report {
namespace {

using base::Json;
using base::json_member;

}  // namespace

std::string split_steps_to_json(const std::vector<SplitStep>& steps) {
  Json all = Json::array();
  for (const auto& step : steps) {
    Json arguments = Json::array();
    for (const auto& [name, what, how, hint] : step.arguments) {
      Json argument = {{"name", name}, {"what", what}, {"how", how}};
      if (!hint.empty()) argument["hint"] = hint;
      arguments.push_back(std::move(argument));
    }
    all.push_back({{"rows", step.rows},
                   {"microbatches", step.microbatches},
                   {"arguments", std::move(arguments)}});
  }
  return Json{{"steps", std::move(all)}}.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::vector<SplitStep> split_steps_from_json(const std::string& text, const std::string& name) {
  std::vector<SplitStep> steps;
  for (const Json& json :
       json_member<std::vector<Json>>(base::parse_json(text, name), "steps", name)) {
    auto& step = steps.emplace_back();
    step.rows = json_member<std::int64_t>(json, "rows", name);
    step.microbatches = json_member<int>(json, "microbatches", name);
    for (const Json& argument : json_member<std::vector<Json>>(json, "arguments", name)) {
      step.arguments.push_back(
          {json_member<std::string>(argument, "name", name),
           json_member<std::string>(argument, "what", name),
           json_member<std::string>(argument, "how", name),
           argument.contains("hint") ? json_member<std::string>(argument, "hint", name) : ""});
    }
  }
  return steps;
}

std::vector<std::vector<std::string>> split_rows(const std::vector<SplitStep>& steps) {
  std::vector<std::vector<std::string>> rows = {
      {"rows", "microbatches", "argument", "", "reached microbatches", ""}};
  for (const auto& step : steps) {
    for (const auto& [name, what, how, hint] : step.arguments) {
      rows.push_back(
          {std::to_string(step.rows), std::to_string(step.microbatches), name, what, how, hint});
    }
  }
  return rows;
}

}  // namespace smp::report
