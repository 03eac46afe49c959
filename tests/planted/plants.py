"""Bugs to plant: each replaces one passage of one source. `tests` are programs and filters of unit
tests that should find what the fuzzer does not."""

from collections import namedtuple

Plant = namedtuple("Plant", "name file find replace tests")

SERVER = ("test_server", "*")
API = ("test_api", "*")
PROMISED = ("test_api", "PromisedOutputs.*")
STATIC = ("test_api", "StaticMode.*")
SCHEDULE = ("test_schedule", "*")
ZOO = ("test_api", "*Zoo*")
MODULE = ("test_module", "*")
FIBER = ("test_fiber", "*")

PLANTS = [
    # ---- answers and waits
    Plant("reply in order of arrival", "src/server/reply_queue.cpp",
          "  auto& oldest = at(first);\n  oldest.taken = true;",
          "  for (auto& one : replies) {\n"
          "    if (one.arrived && !one.taken) std::swap(one.gradients, at(first).gradients);\n"
          "    if (one.arrived && !one.taken) std::swap(one.node, at(first).node);\n"
          "  }\n"
          "  auto& oldest = at(first);\n  oldest.taken = true;", [SERVER]),
    Plant("lost wake-up", "src/server/call_router.cpp",
          "    response = std::move(answer);\n    arrived_.signal();",
          "    response = std::move(answer);\n    if (response->record) arrived_.signal();", [SERVER]),
    Plant("message of the next step is dropped", "src/server/module_server.cpp",
          "    early_.push_back({source, step, std::move(message)});", "    static_cast<void>(source);",
          [SERVER]),
    Plant("message of a failed step is read", "src/server/module_server.cpp",
          "} else if (in_step() && step == core_.step->number) {", "} else if (in_step()) {", [SERVER]),
    Plant("swallowed error of a pass", "src/server/dynamic_engine.cpp",
          "    failures_.fail_step(std::current_exception());\n    throw;", "    throw;", [SERVER, API]),
    Plant("swallowed error of a remote forward", "src/server/call_router.cpp",
          "    failure = std::move(error);\n    arrived_.signal();", "    arrived_.signal();",
          [SERVER]),
    Plant("failed microbatch never done", "src/server/dynamic_engine.cpp",
          "  tell_others(MicrobatchDone{body.microbatch});\n", "", [SERVER]),
    # ---- gradients
    Plant("double accumulation", "src/server/waiting_gradients.cpp",
          "    add(sum, std::move(gradient));\n  }\n  return delivered;",
          "    auto again = gradient.clone();\n    bytes_ += dense_bytes(again);\n"
          "    if (delivered) add(sum, std::move(again));\n"
          "    else bytes_ -= dense_bytes(again);\n"
          "    add(sum, std::move(gradient));\n  }\n  return delivered;", [SERVER]),
    Plant("dropped gradient after the first backward", "src/server/gradient_accumulator.cpp",
          "    for (auto& rest : std::exchange(microbatches_[number].rest, {})) apply(std::move(rest.sum));",
          "    for (auto& rest : std::exchange(microbatches_[number].rest, {})) {\n"
          "      if (number > 0) {\n        waiting_.leave(rest.sum);\n"
          "        continue;\n      }\n      apply(std::move(rest.sum));\n    }", [SERVER]),
    Plant("gradient not cloned", "src/server/leaf_update.cpp",
          "  own_storage(leaf.variable, gradients[0]);\n", "", [SERVER, API]),
    Plant("wrong microbatch weight", "src/api/microbatches.cpp",
          "rows < 0 ? 1.0 / count_ : static_cast<double>(row.length) / static_cast<double>(rows);",
          "1.0 / count_ + 0 * static_cast<double>(row.length + rows);", [API]),
    Plant("gradients of a failed step are kept", "src/server/dynamic_engine.cpp",
          "  core_.accumulator.drop();\n", "  core_.accumulator.finish();\n", [SERVER, API]),
    Plant("kept graph is taken", "src/server/request_runner.cpp",
          "  if (request.keep_graph) return *record;\n", "", [SERVER]),
    Plant("hooks of a tensor are skipped", "src/server/executor.cpp",
          "(index, variable_list(node.num_outputs()), false);\n  call_tensor_hooks(node, inputs);",
          "(index, variable_list(node.num_outputs()), false);", [SERVER]),
    Plant("nodes that nothing reached are executed", "src/server/executor.cpp",
          "  if (!entry.reached) return pass_on", "  if (false) return pass_on", [SERVER]),
    Plant("a step of an unknown kind is not in order", "src/api/step.cpp",
          "if (!runtime_.step_kinds().has(kind_)) task_", "if (false) task_", [API]),
    Plant("gradient of an output goes to its neighbour", "src/server/request_runner.cpp",
          "    gradients.push_back(std::move(request.gradients[i]));",
          "    gradients.push_back(request.gradients[request.gradients[0].defined() ? 0 : i]);",
          [SERVER, API]),
    Plant("dropped release", "src/server/request_runner.cpp",
          "  core_.step->released.push_back(message.record);\n", "  static_cast<void>(message);\n",
          [SERVER]),
    Plant("foreign values are read", "src/server/foreign_parameters.cpp",
          "    throw UsageError(text(op, writes));", "    static_cast<void>(op), static_cast<void>(writes);",
          [SERVER, API]),
    Plant("boundary not guarded", "src/server/special_nodes.cpp",
          "if (!fetched && std::any_of(", "if (!fetched && false && std::any_of(", [SERVER, API]),
    # ---- order
    Plant("wrong ordinal in the order key", "src/server/execution_scope.cpp",
          "return {caller.key(), std::exchange(caller.calls_, caller.calls_ + calls), caller.order_key_};",
          "return {caller.key(), caller.calls_, caller.order_key_};", [SERVER]),
    Plant("swapped random keys", "src/server/execution_scope.cpp",
          "        base::mix_key(base::mix_key(execution.base_key_, entry_.random_key), order_key_));",
          "        base::mix_key(base::mix_key(execution.base_key_, entry_.random_key), ordinal_));",
          [("test_api", "RandomNumbers.*")]),
    Plant("statistics in order of arrival", "src/server/deferred_statistics.cpp",
          "    return std::tie(a.microbatch, a.order) < std::tie(b.microbatch, b.order);",
          "    return std::tie(a.microbatch, a.order) < std::tie(a.microbatch, b.order) && false;",
          [SERVER, ZOO]),
    Plant("statistics stay in the layer at a switch", "src/server/deferred_statistics.cpp",
          "  if (std::exchange(swapped_, running) == running) return;\n",
          "  if (std::exchange(swapped_, running) == running || !running) return;\n", [SERVER]),
    Plant("wrong power of the momentum", "src/server/deferred_statistics.cpp",
          "    return std::pow(1 - *momentum, static_cast<double>(number));",
          "    return std::pow(1 - *momentum, static_cast<double>(number > 0));", [SERVER, ZOO]),
    # ---- what travels
    Plant("off by one in slices", "src/api/microbatches.cpp",
          "    start += length;", "    start += length > 1 && i > 0 ? length - 1 : length;", [API]),
    Plant("dropped requires_grad flag", "src/server/request_runner.cpp",
          "    response.requires_grad.push_back(differentiable);",
          "    response.requires_grad.push_back(differentiable && outputs.empty());", [SERVER]),
    Plant("grad mode does not travel", "src/server/execution_modes.cpp",
          "  modes.grad = at::GradMode::is_enabled();", "  modes.grad = true;", [SERVER, API]),
    Plant("wrong autocast mode", "src/server/execution_modes.cpp",
          "    at::autocast::set_autocast_enabled(device, wanted.enabled);",
          "    at::autocast::set_autocast_enabled(device, !wanted.enabled);", [SERVER, API]),
    Plant("modes of the caller are not taken over", "src/server/request_runner.cpp",
          "  scope.set_settings(settings);\n", "", [SERVER, API]),
    Plant("missing version check of arguments", "src/server/watched_arguments.cpp",
          "  return {tensor.is_inference() ? 0 : static_cast<std::uint32_t>(tensor._version()),",
          "  return {0,", [SERVER, API]),
    Plant("alias index off by one", "src/server/output_links.cpp",
          "    out.put(static_cast<std::int64_t>(index));",
          "    out.put(static_cast<std::int64_t>(index > 0 ? index - 1 : index));", [SERVER, API]),
    # ---- state
    Plant("stale picture of members", "src/server/member_watch.cpp",
          "  std::memcpy(picture_.get() + after, own_.object + after, end_ - after);\n  return true;",
          "  return true;", [SERVER, API]),
    Plant("writes of members unseen while suspended", "src/server/member_watch.cpp",
          "  if (changed()) note_write(microbatch);\n}\n\nbool MemberWatch::leave",
          "  static_cast<void>(microbatch);\n}\n\nbool MemberWatch::leave", [SERVER, API]),
    Plant("every microbatch has its turn", "src/server/microbatch_order.cpp",
          "  while (!has_turn(microbatch)) {", "  while (!has_turn(microbatch) && microbatch < 0) {",
          [SERVER, API]),
    Plant("joint call starts one too late", "src/module/sequential.cpp",
          "  out.put<std::uint64_t>(first);", "  out.put<std::uint64_t>(last - first > 1 ? first + 1 : first);",
          [MODULE, ZOO]),
    # ---- placement
    Plant("wrong owner of tied weights", "src/api/model_placement.cpp",
          "  if (fresh) tensors_.push_back(found);",
          "  if (fresh) {\n    tensors_.push_back(found);\n  } else {\n"
          "    tensors_[known->second].owner = found.owner;\n  }", [API, ZOO]),
    # ---- promised outputs
    Plant("an argument in flight is not protected", "src/server/call_router.cpp",
          "    if (tensor.defined() && tensor.nbytes() > d2d::kInlineBytes) "
          "tensor = clone_on_write(tensor);",
          "    static_cast<void>(tensor);", [PROMISED]),
    Plant("requests of one execution overtake each other", "src/server/waiting_requests.cpp",
          "  if (state.runs || next ==", "  if (next ==", [SERVER]),
    Plant("gradient of an output that is an argument is lost", "src/server/remote_call.cpp",
          "    add_gradient(gradients[passing_[i].argument], std::move(passed_[i]));\n", "",
          [PROMISED]),
    Plant("kept outputs stay", "src/server/kept_outputs.cpp",
          "  if (entry.ended) entries_.erase(name);\n}", "}", [SERVER]),
    Plant("a hook between two remote modules does not see its gradient",
          "src/server/gradient_chain.cpp", "entry.first_capture < 0 && !hooked &&",
          "entry.first_capture < 0 &&", [SERVER, PROMISED]),
    Plant("a capture between two remote modules gets nothing", "src/server/gradient_chain.cpp",
          "entry.first_capture < 0 && !hooked &&", "!hooked &&", [SERVER, PROMISED]),
    Plant("backward runs where no gradient came", "src/server/request_runner.cpp",
          "  const bool reached = request.promised.empty() ||", "  const bool reached = true ||",
          [SERVER, PROMISED]),
    Plant("what was not reached cannot be reached again", "src/server/remote_call.h",
          "override { used_ = false; }", "override {}", [PROMISED]),
    Plant("a failed backward does not tell those that wait for its gradients",
          "src/server/request_runner.cpp",
          "    } catch (...) {\n      fail_routes(task.source, request);\n      throw;", "    } catch (...) {\n      throw;",
          [SERVER, PROMISED]),
    Plant("a gradient takes the place of the one before", "src/server/remote_call.cpp",
          "    request.routes.push_back({path.output,", "    request.routes.push_back({path.output ? path.output - 1 : 0,",
          [SERVER, PROMISED]),
    # ---- static mode
    Plant("ranks of a replayed step are not compared", "src/server/dynamic_engine.cpp",
          "  if (replayed) require_same_facts(", "  if (false) require_same_facts(", [STATIC]),
    Plant("what fails after the end of a replayed step is lost", "src/server/failure_control.cpp",
          "  if (late_ || !ended_well(step)) return;", "  return;", [STATIC]),
    Plant("a buffer that changed is no news", "src/server/buffer_copies.cpp",
          "    news |= fresh ||", "    news |= false &&", [SERVER, STATIC]),
    Plant("a step is replayed in spite of news", "src/server/dynamic_engine.cpp",
          "  if (replayed && !news) return;", "  if (replayed) return;", [STATIC]),
    Plant("steps after news are replayed", "src/server/recorded_steps.h",
          "    if (news) forget();\n    if (!news) ++alike_;", "    ++alike_;", [SERVER]),
    Plant("the order of the last recorded step is kept, not the fastest",
          "src/server/recorded_steps.h", "|| duration >= fastest_) return", ") return", [SERVER]),
    Plant("steps under windows are replayed", "src/server/dynamic_engine.cpp",
          "         !core_.step->progress.has_windows();", "         true;", [STATIC]),
    Plant("nobody keeps to the recorded order", "src/server/dynamic_engine.cpp",
          "  if (keeps_order_ &&", "  if (false &&", [STATIC]),
    # ---- what a run leaves behind
    Plant("a span that runs has ended", "src/schedule/trace_ring.cpp",
          "std::atomic_ref(open_->end).store(time,", "std::atomic_ref(open_->end).store(time + 1,", [SCHEDULE]),
]
