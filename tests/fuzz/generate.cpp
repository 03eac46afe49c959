// fuzz/generate.cpp: draws programs. A program may use a random part of the operations only, so
// that rare combinations are met, and those that end in a refusal spoil few programs.
#include <algorithm>
#include <array>

#include "api/optimizer/user_steps.h"
#include "fuzz/program.h"
#include "support/dice.h"

namespace smp::fuzz {
namespace {

/// How often a program has an operation at all, and its weight among those it has.
struct Rule {
  Op op;
  double enabled;
  int weight;
};
constexpr std::array kRules{
    Rule{Op::kUnary, 1, 6},           Rule{Op::kBinary, 1, 5},
    Rule{Op::kFreshInPlace, .5, 3},   Rule{Op::kInPlace, .12, 2},
    Rule{Op::kView, .5, 3},           Rule{Op::kWeight, .8, 5},
    Rule{Op::kTokens, .5, 2},         Rule{Op::kCall, 1, 8},
    Rule{Op::kIfData, .6, 3},         Rule{Op::kIfMicrobatch, .3, 2},
    Rule{Op::kLoop, .5, 2},           Rule{Op::kDetach, .3, 1},
    Rule{Op::kNoGrad, .3, 1},         Rule{Op::kHook, .3, 2},
    Rule{Op::kThrow, .08, 1},         Rule{Op::kTry, .25, 2},
    Rule{Op::kReadWeight, .08, 1},    Rule{Op::kReadWeightValue, .06, 1},
    Rule{Op::kIfWeight, .06, 1},      Rule{Op::kReadTable, .1, 2},
    Rule{Op::kReadCount, .08, 1},     Rule{Op::kReadAverage, .08, 1},
    Rule{Op::kCountBuffer, .1, 1},    Rule{Op::kUpdateAverage, .12, 2},
    Rule{Op::kReturnBuffer, .06, 1},  Rule{Op::kWriteScratch, .12, 2},
    Rule{Op::kReadScratch, .1, 2},    Rule{Op::kCountMember, .08, 1},
    Rule{Op::kReadCounter, .08, 1},   Rule{Op::kKeep, .06, 2},
    Rule{Op::kTakeKept, .06, 1},      Rule{Op::kWriteAuxiliary, .08, 1},
    Rule{Op::kReadAuxiliary, .08, 1}, Rule{Op::kToggle, .06, 1},
    Rule{Op::kFreeze, .04, 1},
};

constexpr int kMaxModules = 20;
constexpr int kMaxDepth = 4;
constexpr double kMaxCalls = 80;  ///< of one microbatch

class Generator {
 public:
  Generator(std::uint64_t seed, const std::set<std::string>& without)
      : dice_(seed), without_(without) {
    program_.seed = seed;
    for (const auto& rule : kRules) {
      const bool enabled = dice_.chance(rule.enabled);
      if (enabled && !without.count(name_of(rule.op))) rules_.push_back(rule);
    }
  }

  Program take() {
    settings();
    most_modules_ = dice_.between(2, kMaxModules);
    add_module(-1, 0, "");
    // Later modules first, so that the number of calls below a module is known.
    cost_.assign(program_.modules.size(), 1);
    for (int i = static_cast<int>(program_.modules.size()) - 1; i >= 0; --i) write_module(i);
    body();
    place();
    // Drawn last: programs of earlier seeds stay what they were but for that.
    if (draw("loss of a module", .3)) program_.body.loss_rank = dice_.below(program_.ranks);
    mode();
    replicas();
    optimizer();
    additions();
    program_.body.row_lists = draw("lists of rows", .3);
    program_.delayed = draw("delayed initialisation", .25);
    program_.loads = draw("loads before the first step", .25);
    penalties();
    checkpoints();
    slopes();
    return std::move(program_);
  }

 private:
  bool allowed(const std::string& feature) const { return without_.count(feature) == 0; }
  bool draw(const std::string& feature, double probability) {
    const bool drawn = dice_.chance(probability);
    return drawn && allowed(feature);
  }

  void settings() {
    auto& p = program_;
    p.ranks = dice_.between(1, 6);
    p.microbatches = dice_.between(1, 6);
    p.steps = dice_.between(1, 4);
    p.rows = p.microbatches * dice_.between(2, 3) + dice_.below(2);
    p.schedule = dice_.chance(.4)   ? "simple"
                 : dice_.chance(.3) ? "zero_bubble"
                 : dice_.chance(.2) ? "1f1b"
                                    : "interleaved";
    p.planner = draw("planner", .4);
    p.trial = dice_.chance(.7);
    p.evaluates = draw("evaluates", .15);
    constexpr std::array kDelays{1e-7, 1e-6, 1e-4, 1e-2};
    p.mean_delay = kDelays[static_cast<std::size_t>(dice_.below(kDelays.size()))];
  }

  /// Steps enough that the last three can be replayed.
  void mode() {
    auto& p = program_;
    const bool is_static = draw("static mode", .4);
    const bool is_fast = draw("fast mode", .5);
    if (!is_static) return;
    p.static_mode = true;
    p.fast_mode = is_fast;
    p.steps = 8;
  }

  /// What programs of earlier seeds have not.
  void replicas() {
    auto& p = program_;
    const bool several = draw("replicas", .25);
    const bool later = draw("second model later", .5);
    if (several && p.ranks <= 3) p.replicas = 2;
    if (later && p.body.models == 2 && p.steps > 1) {
      p.body.second_from = dice_.between(1, p.steps - 1);
      p.body.backward_of_other = false;
    }
  }

  void optimizer() {
    auto& p = program_;
    // AdamW makes a step of any gradient, be it a rounding error.
    const int way = dice_.between(static_cast<int>(user_steps::UserStep::kFusedSgd),
                                  static_cast<int>(user_steps::UserStep::kSetData));
    if (draw("steps by itself", .4)) p.steps_by_itself = way;
    p.groups = draw("two groups", .5);
    p.joins = p.groups && draw("a group joins", .4);
    p.reloads = draw("reloads", .4);
  }

  /// Some nodes add to gradients by themselves.
  void additions() {
    program_.body.argument_gradients = draw("argument gradients", .3);
    if (!draw(name_of(Op::kAddGradient), .3)) return;
    for (auto& one : program_.modules) {
      if (one.kind != Kind::kNode || !dice_.chance(.5)) continue;
      Instruction addition;
      addition.op = Op::kAddGradient;
      addition.to = dice_.chance(.6) ? 2 : reg();
      addition.a = dice_.chance(.6) ? 2 : reg();
      addition.value = dice_.number(-1, 1);
      addition.which = dice_.below(kAdditions);
      // The body's own pass would be refused; so would that of a module that runs with it.
      if (!one.routed && addition.which == kByOwnBackward) addition.which = kByHook;
      const int place = dice_.below(static_cast<int>(one.code.size()) + 1);
      one.code.insert(one.code.begin() + place, std::move(addition));
    }
  }

  /// What modules add to gradients themselves, they add once for each part of a pass over a call
  /// and over gradients of it (docs/what_is_equal.md).
  void penalties() {
    const bool some = draw("gradient penalty", .2);
    const int depth = draw("gradient of a gradient", .4) ? 2 : 1;
    if (some && features(program_).count(name_of(Op::kAddGradient)) == 0) {
      program_.body.penalties = depth;
    }
  }

  void slopes() {
    if (!draw(name_of(Op::kSlope), .15)) return;
    if (features(program_).count(name_of(Op::kAddGradient)) > 0) return;
    for (auto& one : program_.modules) {
      if (!one.checkpointed) differentiate_calls(one.code);
    }
  }
  void differentiate_calls(Code& code) {
    for (auto& i : code) {
      if (i.op == Op::kCall && dice_.chance(.3)) {
        i.op = Op::kSlope;
        i.value = dice_.number(-.3, .3);
      }
      differentiate_calls(i.inner);
      differentiate_calls(i.other);
    }
  }

  /// What is computed again writes its members again (docs/memory.md, "Not noticed").
  void checkpoints() {
    if (!draw("checkpointed modules", .25)) return;
    const auto used = features(program_);
    for (const auto op : {Op::kWriteScratch, Op::kCountMember, Op::kKeep, Op::kTakeKept,
                          Op::kWriteAuxiliary, Op::kAddGradient}) {
      if (used.count(name_of(op)) > 0) return;
    }
    for (auto& one : program_.modules) one.checkpointed = one.routed && dice_.chance(.4);
  }

  int add_module(int parent, int depth, const std::string& path) {
    auto& modules = program_.modules;
    const int number = static_cast<int>(modules.size());
    modules.emplace_back();
    const bool node = depth == 0 || (depth < kMaxDepth && dice_.chance(.55));
    modules.back().kind = node ? Kind::kNode : static_cast<Kind>(dice_.between(1, 7));
    modules.back().routed = dice_.chance(depth == 0 ? .6 : .8);
    modules.back().parent = parent;
    modules.back().path = path;
    if (!node) return number;
    const int wanted = depth == 0 ? dice_.between(1, 5) : dice_.below(4);
    for (int i = 0; i < wanted && static_cast<int>(modules.size()) < most_modules_; ++i) {
      const auto name = (path.empty() ? "" : path + ".") + "m" + std::to_string(modules.size());
      const int child = add_module(number, depth + 1, name);
      modules[static_cast<std::size_t>(number)].children.push_back(child);
    }
    return number;
  }

  Module& module(int number) { return program_.modules[static_cast<std::size_t>(number)]; }

  void write_module(int number) {
    if (module(number).kind != Kind::kNode) return;
    writing_ = number;
    calls_ = 1;
    times_ = 1;
    Code code = block(dice_.between(1, 5), 0);
    for (const int child : module(number).children) {
      if (!dice_.chance(.93)) continue;
      Instruction call = call_of(child);
      if (!affordable(child)) continue;
      calls_ += cost(child);
      code.insert(code.begin() + dice_.below(static_cast<int>(code.size()) + 1), std::move(call));
    }
    auto& written = module(number);
    written.code = std::move(code);
    for (int i = dice_.between(1, 3); i > 0; --i) written.outputs.push_back(reg());
    if (dice_.chance(.7)) written.outputs[0] = 2;
    cost_[static_cast<std::size_t>(number)] = calls_;
  }

  double cost(int number) const { return cost_[static_cast<std::size_t>(number)]; }
  bool affordable(int number) const { return calls_ + times_ * cost(number) < kMaxCalls; }
  int reg() { return dice_.below(kRegisters); }

  Instruction call_of(int callee) {
    Instruction call;
    call.op = Op::kCall;
    call.which = callee;
    call.a = reg();
    call.to = dice_.chance(.6) ? 2 : reg();
    call.b = dice_.chance(.4) ? reg() : -1;
    call.also = dice_.chance(.4) ? reg() : -1;
    return call;
  }

  Code block(int length, int depth) {
    Code code;
    for (int i = 0; i < length; ++i) {
      auto instruction = draw_instruction(depth);
      if (instruction.op != Op::kEnd) code.push_back(std::move(instruction));
    }
    return code;
  }

  const Rule& draw_rule() {
    int sum = 0;
    for (const auto& rule : rules_) sum += rule.weight;
    int at = dice_.below(sum);
    for (const auto& rule : rules_) {
      if ((at -= rule.weight) < 0) return rule;
    }
    return rules_.front();
  }

  /// A node whose state is read: often its own.
  int node() {
    if (dice_.chance(.4)) return writing_;
    for (int i = 0; i < 10; ++i) {
      const int number = dice_.below(static_cast<int>(program_.modules.size()));
      if (module(number).kind == Kind::kNode) return number;
    }
    return writing_;
  }
  /// `number` or a module below it.
  int below(int number) {
    std::vector<int> all{number};
    for (std::size_t i = 0; i < all.size(); ++i) {
      const auto& children = module(all[i]).children;
      all.insert(all.end(), children.begin(), children.end());
    }
    return all[static_cast<std::size_t>(dice_.below(static_cast<int>(all.size())))];
  }

  Instruction draw_instruction(int depth) {
    Instruction made;
    made.op = draw_rule().op;
    made.to = dice_.chance(.4) ? 2 : reg();
    made.a = reg();
    made.b = reg();
    made.value = dice_.number(-1, 1);
    switch (made.op) {
      case Op::kUnary:
        made.which = dice_.below(7);
        break;
      case Op::kBinary:
        made.which = dice_.below(3);
        break;
      case Op::kFreshInPlace:
      case Op::kInPlace:
      case Op::kView:
        made.which = dice_.below(3);
        break;
      case Op::kHook:
        made.which = draw(kHookOnAnything, .5) ? 1 : 0;
        break;
      case Op::kWriteScratch:
        made.which = dice_.chance(.3) ? 1 : 0;
        break;
      case Op::kCall:
        return draw_call();
      case Op::kFreeze:
        made.which = writing_;
        break;
      case Op::kToggle:
        made.which = below(writing_);
        // Modes travel with calls to what is below, not to what a stranger calls.
        if (strangers_) made.op = Op::kUnary;
        toggles_ |= !strangers_;
        break;
      default:
        if (names_module(made.op)) made.which = node();
    }
    if (made.op == Op::kIfWeight) made.value = dice_.number(.5, 1.5);
    if (made.op == Op::kHook) made.value = dice_.number(.5, 1.5);
    return with_blocks(std::move(made), depth);
  }

  Instruction draw_call() {
    const auto& children = module(writing_).children;
    Instruction nothing;
    nothing.op = Op::kEnd;
    // Below or behind itself in the list, so that no module calls itself; seldom not its own child.
    int callee = -1;
    if (!children.empty() && dice_.chance(.85)) {
      callee = children[static_cast<std::size_t>(dice_.below(static_cast<int>(children.size())))];
    } else if (allowed("calls a stranger")) {
      const int last = static_cast<int>(program_.modules.size()) - 1;
      if (writing_ < last && dice_.chance(.3)) callee = dice_.between(writing_ + 1, last);
    }
    if (callee < 0 || !affordable(callee)) return nothing;
    const bool stranger = module(callee).parent != writing_;
    if (stranger && !module(callee).routed && !allowed(kPlainStranger)) return nothing;
    if (stranger && toggles_) return nothing;
    strangers_ |= stranger;
    calls_ += times_ * cost(callee);
    return call_of(callee);
  }

  Instruction with_blocks(Instruction made, int depth) {
    if (!has_block(made.op)) return made;
    if (depth >= 2) {
      made.op = Op::kUnary;
      return made;
    }
    if (made.op == Op::kLoop) times_ *= 2;
    made.inner = block(dice_.between(1, 3), depth + 1);
    if (made.op == Op::kLoop) times_ /= 2;
    if (has_branches(made.op)) made.other = block(dice_.between(0, 2), depth + 1);
    return made;
  }

  void body() {
    auto& body = program_.body;
    body.models = draw("two models", .15) ? 2 : 1;
    body.chained = dice_.chance(.5);
    body.backwards = draw("several backwards", .25) ? dice_.between(2, 3) : 1;
    body.as_list = draw("backward of a list", .3);
    body.gradient = draw("backward with a gradient", .1);
    body.catches = draw("body catches", .1);
    body.calls_part = draw("body calls a part", .1);
    body.returns_buffer = draw("body returns a buffer", .05);
    body.backward_of_other = body.models == 2 && dice_.chance(.3);
  }

  /// The root stays with the body, and the planner finds something for every rank.
  void place() {
    int routed = 0;
    for (const auto& module : program_.modules) routed += module.routed ? 1 : 0;
    if (program_.planner) program_.ranks = std::clamp(routed / 2, 1, program_.ranks);
    for (auto& module : program_.modules) {
      const bool pinned = module.routed && dice_.chance(program_.planner ? .2 : .7);
      if (module.parent < 0) continue;
      const int rank = dice_.below(program_.ranks);
      if (pinned) module.pin = rank;
    }
  }

  Dice dice_;
  const std::set<std::string>& without_;
  bool toggles_ = false;
  bool strangers_ = false;  // are called
  Program program_;
  std::vector<Rule> rules_;
  int most_modules_ = 0;
  std::vector<double> cost_;
  int writing_ = 0;
  double calls_ = 0;  // of the module that is written, and all below
  double times_ = 1;  // the block that is written runs so often
};

}  // namespace

Program generate(std::uint64_t seed, const std::set<std::string>& without) {
  return Generator(seed, without).take();
}

}  // namespace smp::fuzz
