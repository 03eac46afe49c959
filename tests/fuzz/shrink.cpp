// fuzz/shrink.cpp: makes a failing program smaller, greedily, as long as its verdict stays.
#include <algorithm>
#include <chrono>
#include <functional>
#include <utility>
#include <vector>

#include "fuzz/apart.h"

namespace smp::fuzz {
namespace {

using Change = std::function<bool(Program&)>;  ///< false: nothing to change

/// Visits every instruction of a block; `visit` returns true to stop.
bool walk(Code& code, const std::function<bool(Code&, std::size_t)>& visit) {
  for (std::size_t i = 0; i < code.size(); ++i) {
    if (visit(code, i)) return true;
    if (walk(code[i].inner, visit) || walk(code[i].other, visit)) return true;
  }
  return false;
}

void remove_calls(Code& code, const std::vector<int>& renumbered) {
  std::erase_if(code, [&](const Instruction& i) {
    return names_module(i.op) && renumbered[static_cast<std::size_t>(i.which)] < 0;
  });
  for (auto& i : code) {
    if (names_module(i.op)) i.which = renumbered[static_cast<std::size_t>(i.which)];
    remove_calls(i.inner, renumbered);
    remove_calls(i.other, renumbered);
  }
}

/// Takes a module and everything below it out of the program.
bool remove_module(Program& program, int number) {
  auto& modules = program.modules;
  std::vector<int> renumbered(modules.size());
  std::vector<Module> left;
  for (std::size_t i = 0; i < modules.size(); ++i) {
    const auto parent = static_cast<std::size_t>(std::max(0, modules[i].parent));
    const bool gone = static_cast<int>(i) == number || (i > 0 && renumbered[parent] < 0);
    renumbered[i] = gone ? -1 : static_cast<int>(left.size());
    if (!gone) left.push_back(modules[i]);
  }
  for (auto& module : left) {
    if (module.parent >= 0) module.parent = renumbered[static_cast<std::size_t>(module.parent)];
    std::vector<int> children;
    for (const int child : module.children) {
      const int now = renumbered[static_cast<std::size_t>(child)];
      if (now >= 0) children.push_back(now);
    }
    module.children = children;
    remove_calls(module.code, renumbered);
  }
  modules = std::move(left);
  return !program.body.calls_part || modules.size() > 1;
}

template <class T>
Change setting(T Program::*member, T value) {
  return [=](Program& program) {
    if (program.*member == value) return false;
    program.*member = value;
    return true;
  };
}
template <class T>
Change of_body(T Body::*member, T value) {
  return [=](Program& program) {
    if (program.body.*member == value) return false;
    program.body.*member = value;
    return true;
  };
}

Change fewer(int Program::*member, int least) {
  return [=](Program& program) {
    if (program.*member <= least) return false;
    --(program.*member);
    if (member == &Program::ranks) {
      for (auto& module : program.modules) module.pin = std::min(module.pin, program.ranks - 1);
      program.body.loss_rank = std::min(program.body.loss_rank, program.ranks - 1);
    }
    return program.rows >= program.microbatches;
  };
}

void change_settings(std::vector<Change>& changes) {
  changes.push_back(setting(&Program::steps, 1));
  changes.push_back(setting(&Program::evaluates, false));
  changes.push_back(setting(&Program::fast_mode, false));
  changes.push_back(setting(&Program::delayed, false));
  changes.push_back(setting(&Program::loads, false));
  changes.push_back([](Program& program) {
    const bool on = program.static_mode;
    program.static_mode = program.fast_mode = false;
    return on;
  });
  changes.push_back(setting(&Program::reloads, false));
  changes.push_back(setting(&Program::joins, false));
  changes.push_back([](Program& program) {
    const bool on = program.groups;
    program.groups = program.joins = false;
    return on;
  });
  changes.push_back(setting(&Program::steps_by_itself, -1));
  changes.push_back(setting(&Program::planner, false));
  changes.push_back(setting(&Program::trial, false));
  changes.push_back(setting(&Program::schedule, std::string("simple")));
  changes.push_back(setting(&Program::replicas, 1));
  changes.push_back(of_body(&Body::second_from, 0));
  changes.push_back(of_body(&Body::models, 1));
  changes.push_back(of_body(&Body::backwards, 1));
  changes.push_back(of_body(&Body::as_list, false));
  changes.push_back(of_body(&Body::gradient, false));
  changes.push_back(of_body(&Body::catches, false));
  changes.push_back(of_body(&Body::calls_part, false));
  changes.push_back(of_body(&Body::returns_buffer, false));
  changes.push_back(of_body(&Body::argument_gradients, false));
  changes.push_back(of_body(&Body::loss_rank, -1));
  changes.push_back(of_body(&Body::row_lists, false));
  changes.push_back(of_body(&Body::penalties, 1));
  changes.push_back(of_body(&Body::penalties, 0));
  changes.push_back(fewer(&Program::steps, 1));
  changes.push_back(fewer(&Program::ranks, 1));
  changes.push_back(fewer(&Program::microbatches, 1));
  changes.push_back(fewer(&Program::rows, 1));
}

/// Changes of the n-th instruction of a module: it goes, or its block takes its place.
void change_code(const Program& program, std::size_t number, std::vector<Change>& changes) {
  int count = 0;
  Code copy = program.modules[number].code;
  walk(copy, [&](Code&, std::size_t) { return ++count, false; });
  for (int n = count - 1; n >= 0; --n) {
    for (const bool unwrap : {false, true}) {
      changes.push_back([=](Program& changed) {
        int at = 0;
        return walk(changed.modules[number].code, [&](Code& code, std::size_t i) {
          if (at++ != n) return false;
          const Code inner = code[i].inner;
          if (unwrap && inner.empty()) return false;
          const auto place = code.erase(code.begin() + static_cast<std::ptrdiff_t>(i));
          if (unwrap) code.insert(place, inner.begin(), inner.end());
          return true;
        });
      });
    }
  }
}

void change_module(std::size_t number, std::vector<Change>& changes) {
  changes.push_back([=](Program& program) {
    auto& module = program.modules[number];
    if (module.outputs.size() <= 1) return false;
    module.outputs.pop_back();
    return true;
  });
  changes.push_back([=](Program& program) {
    auto& module = program.modules[number];
    if (module.pin < 0) return false;
    module.pin = -1;
    return true;
  });
  changes.push_back(
      [=](Program& program) { return std::exchange(program.modules[number].checkpointed, false); });
  changes.push_back([=](Program& program) {
    auto& module = program.modules[number];
    if (!module.routed) return false;
    module.routed = module.checkpointed = false;
    module.pin = -1;
    return true;
  });
}

std::vector<Change> changes_of(const Program& program) {
  std::vector<Change> changes;
  for (int i = static_cast<int>(program.modules.size()) - 1; i > 0; --i) {
    changes.push_back([=](Program& changed) { return remove_module(changed, i); });
  }
  change_settings(changes);
  for (std::size_t i = 0; i < program.modules.size(); ++i) change_code(program, i, changes);
  for (std::size_t i = 0; i < program.modules.size(); ++i) change_module(i, changes);
  return changes;
}

}  // namespace

Program shrink(const Program& program, Verdict verdict, double seconds) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  Program best = program;
  for (bool smaller = true; smaller;) {
    smaller = false;
    const auto changes = changes_of(best);
    for (std::size_t i = 0; i < changes.size() && !smaller; ++i) {
      if (std::chrono::steady_clock::now() > end) return best;
      Program candidate = best;
      if (!changes[i](candidate)) continue;
      Result result;
      judge_apart(
          1, [&](int) { return judge(candidate); },
          [&](int, const Result& own) { return result = own, true; }, 10);
      if (result.verdict != verdict) continue;
      best = std::move(candidate);
      smaller = true;
    }
  }
  return best;
}

}  // namespace smp::fuzz
