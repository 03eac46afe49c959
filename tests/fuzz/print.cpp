// fuzz/print.cpp: programs as text.
#include <array>
#include <functional>
#include <sstream>

#include "api/optimizer/user_steps.h"
#include "fuzz/program.h"

namespace smp::fuzz {
namespace {

constexpr std::array kOpNames{
    "unary",          "binary",
    "fresh in-place", "in-place",
    "view",           "weight",
    "tokens",         "call",
    "if data",        "if microbatch",
    "loop",           "detach",
    "no_grad",        "hook",
    "throw",          "try",
    "read weight",    "read weight value",
    "if weight",      "read table",
    "read count",     "read average",
    "count buffer",   "update average",
    "return buffer",  "write scratch",
    "read scratch",   "count member",
    "read counter",   "keep",
    "take kept",      "write auxiliary",
    "read auxiliary", "toggle",
    "freeze",         "gradient in a module",
    "add gradient",
};
static_assert(kOpNames.size() == static_cast<std::size_t>(Op::kEnd));

constexpr std::array kKindNames{"Node",      "Linear",     "LayerNorm",  "BatchNorm1d",
                                "Embedding", "Dropout(0)", "Sequential", "GRUCell"};

class Printer {
 public:
  explicit Printer(const Program& program) : program_(program) {}

  std::string text() {
    settings();
    for (std::size_t i = 0; i < program_.modules.size(); ++i) print_module(i);
    print_body();
    return out_.str();
  }

 private:
  void settings() {
    const auto& p = program_;
    out_ << "// seed " << p.seed << ": " << p.ranks << " ranks, "
         << (p.replicas > 1 ? "twice on the same samples, " : "") << p.microbatches
         << " microbatches of " << p.rows << " rows, " << p.steps << " steps, " << p.schedule
         << ", delay " << p.mean_delay << ", "
         << (p.planner ? (p.trial ? "planner with a trial run" : "planner that counts")
                       : "placed by hand, rest on 0")
         << (p.evaluates ? ", evaluated before" : "")
         << (p.fast_mode     ? ", fast mode"
             : p.static_mode ? ", static mode without fast mode"
                             : "")
         << ", "
         << (p.steps_by_itself < 0
                 ? "SGD"
                 : user_steps::name_of(static_cast<user_steps::UserStep>(p.steps_by_itself)))
         << (p.joins    ? " with a group that joins"
             : p.groups ? " with two groups"
                        : "")
         << (p.reloads ? ", reloaded" : "") << (p.delayed ? ", initialised late" : "")
         << (p.loads ? ", loaded" : "") << "\n";
  }

  std::string name(int number) const {
    const auto& path = program_.modules[static_cast<std::size_t>(number)].path;
    return path.empty() ? "root" : path.substr(path.rfind('.') + 1);
  }
  static std::string reg(int number) { return "r" + std::to_string(number); }
  static std::string text_of(double value) { return (std::ostringstream() << value).str(); }

  void print_module(std::size_t number) {
    const auto& module = program_.modules[number];
    out_ << (module.path.empty() ? "root" : module.path) << ": "
         << kKindNames[static_cast<std::size_t>(module.kind)]
         << (module.routed ? ", routed" : ", not routed")
         << (module.checkpointed ? ", checkpointed" : "");
    if (module.pin >= 0) out_ << ", on rank " << module.pin;
    out_ << "\n";
    if (module.kind != Kind::kNode) return;
    out_ << "  forward(r0, r1, tokens) {\n";
    block(module.code, 4);
    out_ << "    return {";
    for (std::size_t i = 0; i < module.outputs.size(); ++i) {
      out_ << (i == 0 ? "" : ", ") << reg(module.outputs[i]);
    }
    out_ << "}\n  }\n";
  }

  void block(const Code& code, int indent) {
    for (const auto& instruction : code) line(instruction, indent);
  }

  void line(const Instruction& i, int indent) {
    out_ << std::string(static_cast<std::size_t>(indent), ' ') << words(i);
    if (!has_block(i.op)) {
      out_ << "\n";
      return;
    }
    out_ << " {\n";
    block(i.inner, indent + 2);
    out_ << std::string(static_cast<std::size_t>(indent), ' ') << "}";
    if (!i.other.empty()) {
      out_ << (i.op == Op::kTry ? " catch {\n" : " else {\n");
      block(i.other, indent + 2);
      out_ << std::string(static_cast<std::size_t>(indent), ' ') << "}";
    }
    out_ << "\n";
  }

  std::string words(const Instruction& i) const {
    const auto to = reg(i.to), a = reg(i.a), b = reg(i.b);
    switch (i.op) {
      case Op::kUnary:
        return to + " = " + unary(i);
      case Op::kBinary:
        return to + " = " + a + " " + "+*-"[static_cast<std::size_t>(i.which)] + " " + b;
      case Op::kFreshInPlace:
        return to + " = " + a + ".clone(); " + in_place(i);
      case Op::kInPlace:
        return in_place(i);
      case Op::kView:
        return to + " = " + view(i);
      case Op::kWeight:
        return to + " = " + a + ".matmul(weight)";
      case Op::kTokens:
        return to + " = " + a + " + 0.1 * tokens";
      case Op::kCall:
        return to + (i.also < 0 ? "" : ", " + reg(i.also)) + " = " + name(i.which) + "(" + a +
               (i.b < 0 ? "" : ", " + b) + ")";
      case Op::kSlope:
        return to + " = " + name(i.which) + "(" + a + " = " + a + " * 1); " + to +
               " += " + text_of(i.value) + " * gradient of " + to + ".square().sum() by " + a;
      case Op::kDetach:
        return to + " = " + a + ".detach()";
      case Op::kHook:
        return (i.which == 0 ? a + " = " + a + " * 1; " : "") + a + ".register_hook(gradient * " +
               text_of(i.value) + ")";
      default:
        return words_of_control(i);
    }
  }

  std::string words_of_control(const Instruction& i) const {
    const auto a = reg(i.a), value = text_of(i.value);
    switch (i.op) {
      case Op::kIfData:
        return "if (" + a + ".sum() > " + value + ")";
      case Op::kIfMicrobatch:
        return "if (microbatch % 2)";
      case Op::kIfWeight:
        return "if (" + name(i.which) + "->weight.norm() > " + value + ")";
      case Op::kLoop:
        return "repeat (1 + tokens.sum() % 3)";
      case Op::kNoGrad:
        return "no_grad";
      case Op::kThrow:
        return "if (" + a + ".sum() > " + value + ") throw";
      case Op::kTry:
        return "try";
      default:
        return words_of_named(i);
    }
  }

  /// Of instructions that use the state of the module they name.
  std::string words_of_named(const Instruction& i) const {
    if (!names_module(i.op)) return words_of_own(i);
    const auto to = reg(i.to), a = reg(i.a), other = name(i.which);
    switch (i.op) {
      case Op::kReadWeight:
        return to + " = " + a + " * " + other + "->weight.mean()";
      case Op::kReadWeightValue:
        return to + " = " + a + " + " + other + "->weight.detach().mean()";
      case Op::kReadTable:
        return to + " = " + a + " + " + other + "->table";
      case Op::kReadCount:
        return to + " = " + a + " * (1 + 0.01 * " + other + "->count.item())";
      case Op::kReadAverage:
        return to + " = " + a + " + " + other + "->average";
      case Op::kReadScratch:
        return to + " = " + a + " + " + other + "->scratch.mean(0)  // if set";
      case Op::kReadCounter:
        return to + " = " + a + " * (1 + 0.01 * " + other + "->counter)";
      case Op::kReadAuxiliary:
        return to + " = " + a + " + 0.1 * " + other + "->auxiliary  // if set";
      case Op::kToggle:
        return other + (i.value > 0 ? "->train()" : "->eval()");
      case Op::kFreeze:
        return other + "->weight.requires_grad_(" + (i.value > 0 ? "true" : "false") + ")";
      default:
        return "?";
    }
  }

  /// Of those that use the state of the module that runs them.
  static std::string words_of_own(const Instruction& i) {
    const auto to = reg(i.to), a = reg(i.a);
    switch (i.op) {
      case Op::kCountBuffer:
        return "count.add_(1)";
      case Op::kUpdateAverage:
        return "average.mul_(0.9).add_(" + a + ".detach().mean(0), 0.1)";
      case Op::kReturnBuffer:
        return to + " = average.expand_as(" + a + ")";
      case Op::kWriteScratch:
        return "scratch = " + a + (i.which == 0 ? ".detach()" : "");
      case Op::kCountMember:
        return "++counter";
      case Op::kKeep:
        return "kept.push_back(" + a + ")";
      case Op::kTakeKept:
        return to + " = " + a + " + sum of kept.mean(0); kept.clear()";
      case Op::kWriteAuxiliary:
        return "auxiliary = " + a + ".pow(2).mean()";
      case Op::kAddGradient:
        return to + " = " + a + "; adds the gradient of microbatch weight * " + text_of(i.value) +
               " * weight.pow(3).sum() by " +
               std::array{"a function", "a hook", "backward()"}[static_cast<std::size_t>(i.which)];
      default:
        return "?";
    }
  }

  static std::string unary(const Instruction& i) {
    const auto a = reg(i.a), value = text_of(i.value);
    const std::array texts{"tanh(" + a + ")",   "sigmoid(" + a + ")", a + " * " + value,
                           a + " + " + value,   "relu(" + a + ")",    a + ".clone()",
                           "softmax(" + a + ")"};
    return texts[static_cast<std::size_t>(i.which)];
  }

  static std::string view(const Instruction& i) {
    const std::array texts{".view_as(self)", ".narrow(0, 0, all)", ".t().t()"};
    return reg(i.a) + texts[static_cast<std::size_t>(i.which)];
  }

  static std::string in_place(const Instruction& i) {
    const auto to = reg(i.to), value = text_of(i.value);
    const std::array texts{to + ".mul_(" + value + ")", to + ".add_(" + reg(i.a) + ")",
                           to + ".narrow(1, 0, 2).add_(" + value + ")"};
    return texts[static_cast<std::size_t>(i.which)];
  }

  void print_body() {
    const auto& body = program_.body;
    out_ << "body: " << body.models << " model" << (body.models == 2 ? "s" : "")
         << (body.models == 2 && body.chained ? ", the second on the first's output" : "")
         << (body.second_from > 0 ? " from step " + std::to_string(body.second_from) + " on" : "")
         << (body.models == 2 && body.backward_of_other ? ", backward() of the second" : "") << ", "
         << body.backwards << " loss" << (body.backwards > 1 ? "es" : "")
         << (body.as_list ? " in one backward({...})" : "")
         << (body.gradient ? ", backward(output, gradient)" : "")
         << (body.catches ? ", catches what the model throws" : "")
         << (body.calls_part ? ", calls root's first child too" : "")
         << (body.returns_buffer ? ", returns root's buffer" : "")
         << (body.argument_gradients ? ", of an argument that needs a gradient" : "")
         << (body.penalties > 0 ? ", penalties of its gradient" : "")
         << (body.penalties > 1 ? " and that one's" : "")
         << (body.row_lists ? ", changes its rows by lists" : "");
    if (body.loss_rank >= 0) out_ << ", losses by a module on rank " << body.loss_rank;
    out_ << "\n";
  }

  const Program& program_;
  std::ostringstream out_;
};

void collect(const Program& program, int writer, const Code& code, std::set<std::string>& result) {
  for (const auto& i : code) {
    result.insert(name_of(i.op));
    if (i.op == Op::kHook && i.which == 1) result.insert(kHookOnAnything);
    const bool calls = i.op == Op::kCall || i.op == Op::kSlope;
    if (calls && program.modules[static_cast<std::size_t>(i.which)].parent != writer) {
      const bool routed = program.modules[static_cast<std::size_t>(i.which)].routed;
      result.insert(routed ? "calls a stranger" : kPlainStranger);
    }
    collect(program, writer, i.inner, result);
    collect(program, writer, i.other, result);
  }
}

}  // namespace

std::string name_of(Op op) { return kOpNames.at(static_cast<std::size_t>(op)); }

std::set<std::string> features(const Program& program) {
  std::set<std::string> result;
  for (std::size_t i = 0; i < program.modules.size(); ++i) {
    const auto& module = program.modules[i];
    if (module.kind != Kind::kNode) {
      result.insert(kKindNames[static_cast<std::size_t>(module.kind)]);
    }
    if (module.checkpointed) result.insert("checkpointed modules");
    collect(program, static_cast<int>(i), module.code, result);
  }
  const auto& body = program.body;
  const auto note = [&](bool has, const char* name) {
    if (has) result.insert(name);
  };
  note(program.planner, "planner");
  note(program.evaluates, "evaluates");
  note(program.static_mode, "static mode");
  note(program.fast_mode, "fast mode");
  note(program.replicas > 1, "replicas");
  note(program.steps_by_itself >= 0, "steps by itself");
  note(program.groups, "two groups");
  note(program.joins, "a group joins");
  note(program.reloads, "reloads");
  note(program.delayed, "delayed initialisation");
  note(program.loads, "loads before the first step");
  note(body.models == 2, "two models");
  note(body.second_from > 0, "second model later");
  note(body.backwards > 1, "several backwards");
  note(body.as_list, "backward of a list");
  note(body.gradient, "backward with a gradient");
  note(body.catches, "body catches");
  note(body.calls_part, "body calls a part");
  note(body.returns_buffer, "body returns a buffer");
  note(body.loss_rank >= 0, "loss of a module");
  note(body.argument_gradients, "argument gradients");
  note(body.row_lists, "lists of rows");
  note(body.penalties > 0, "gradient penalty");
  note(body.penalties > 1, "gradient of a gradient");
  return result;
}

std::string pseudo_code(const Program& program) { return Printer(program).text(); }

}  // namespace smp::fuzz
