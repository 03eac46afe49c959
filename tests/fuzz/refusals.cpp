// fuzz/refusals.cpp
#include "fuzz/refusals.h"

#include <regex>
#include <vector>

namespace smp::fuzz {
namespace {

struct Refusal {
  std::regex message;
  const char* reason;
};

const std::vector<Refusal>& refusals() {
  static const std::vector<Refusal> all{
      {std::regex("it has changed its argument \\d+ in place, which it did not in earlier calls"),
       "changes an argument now and then, when its caller has gone on"},
      {std::regex("a gradient reached parameter .* lives on rank"),
       "computes with a parameter of another rank past its module"},
      {std::regex("(parameter|buffer) .* lives on rank .* has no values here"),
       "reads a parameter or buffer of another rank past its module"},
      {std::regex("(parameter|buffer) .* lives on rank .*, but is written here"),
       "writes a parameter or buffer of another rank past its module"},
      {std::regex("writes its members in forward"), "keeps state that no trial run showed"},
      {std::regex("it keeps state, and microbatch .* calls it after its first backward"),
       "keeps state and is called after a backward, which other microbatches overtake"},
      {std::regex("a tensor with history was kept from one call of a module to another"),
       "keeps a graph in a member, elsewhere than its caller"},
      {std::regex(
           "the step's body leaves .*(in microbatch|but (called|may have used) the model before)"),
       "leaves modes of a model switched, which the next microbatch would begin with"},
      {std::regex("there are .* stages but only .* pieces? of the model to place"),
       "more ranks than modules that can run on their own"},
      {std::regex("must be on one stage: the forward of .* (writes|sets|reads) "),
       "is placed by hand away from who may read what it keeps"},
      {std::regex("must be on one stage: .* cannot leave its parent"),
       "is placed by hand away from a parent that it cannot leave"},
      {std::regex("placement by hand: \\d+ problems"), "is placed by hand against several rules"},
      {std::regex(
           "in forward, and (another microbatch was in it as well|microbatch .* did so before "
           "microbatch \\d+)\\. No trial run showed it"),
       "writes buffers in forward, as no trial run showed"},
      {std::regex("its buffers were written during the step by other code than its own calls"),
       "writes a module's buffers past it, as no trial run showed"},
      {std::regex("its running statistics were updated during the step by other code"),
       "trains a normalisation past the module around it, as no trial run showed"},
      {std::regex("runs in evaluation mode after it was trained in the same step"),
       "trains and evaluates a normalisation, as no trial run showed"},
      {std::regex("buffer .* lives on rank .*, was used on rank .* too, and has other values"),
       "uses a copy of a buffer that its owner has changed"},
      {std::regex("buffer .* lives on rank .*, and both ranks changed it in one step"),
       "changes a buffer on two ranks"},
      {std::regex("must be on one stage: the .* is also held or (read|used) by"),
       "is placed by hand apart from a weight or buffer that it reads"},
      {std::regex("has used tensor .* of its result for another part of its result"),
       "looks at a gradient of which a part arises in a module elsewhere"},
      {std::regex("registered a hook on tensor .* of its arguments, which its caller uses"),
       "hooks an argument that others use as well, elsewhere than they"},
      {std::regex("changed tensor .* of its arguments in place"),
       "a module elsewhere cannot change tensors of its caller"},
      {std::regex("thrown after the module had changed its arguments in place"),
       "throws after it changed an argument, and the caller catches"},
      {std::regex("Output \\d+ of SmpRemoteCall is a view and its base or another view of its base "
                  "has been modified inplace"),
       "changes an output in place that shares memory with another tensor of the call"},
      {std::regex("the caller has it in .* mode, the owner does not"),
       "train() or eval() in a forward, on one rank only"},
      {std::regex("other parameters are frozen"), "requires_grad_ in a forward, on one rank only"},
      {std::regex("activation checkpointing runs a call twice, but this one has written to"),
       "computes a call again that writes a parameter or buffer"},
      {std::regex("a backward pass inside a call with activation checkpointing"),
       "differentiates in a call that is computed again"},
      {std::regex("changed an argument in place, and its caller has activation checkpointing"),
       "computes a call again whose argument a module elsewhere has changed"},
  };
  return all;
}

}  // namespace

const char* reason_to_refuse(const std::string& message) {
  for (const auto& refusal : refusals()) {
    if (std::regex_search(message, refusal.message)) return refusal.reason;
  }
  return nullptr;
}

const char* reason_to_run(const std::string& message) {
  const auto has = [&](const char* text) { return message.find(text) != std::string::npos; };
  if (has("modified by an inplace operation")) {
    return "runs here: a module elsewhere has saved values of its own, which its caller cannot "
           "write";
  }
  return nullptr;
}

}  // namespace smp::fuzz
