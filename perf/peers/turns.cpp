// perf/peers/turns.cpp: see the header.
#include "peers/turns.h"

#include <fmt/ranges.h>
#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <numeric>

namespace smp::perf::peers {
namespace {

double sum_over(const std::vector<double>& all) {
  return std::accumulate(all.begin(), all.end(), 0.0);
}

}  // namespace

Used used() {
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
  };
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return {static_cast<double>(usage.ru_minflt), seconds(usage.ru_utime) + seconds(usage.ru_stime)};
}

void note_use(Answer& answer, const Used& before) {
  const auto after = used();
  const auto seconds = all_gather(after.seconds - before.seconds);
  answer.page_faults.push_back(sum_over(all_gather(after.page_faults - before.page_faults)));
  answer.busiest_share.push_back(*std::max_element(seconds.begin(), seconds.end()) /
                                 sum_over(seconds));
}

constexpr int64_t kPrime = 65521;

void fill(torch::nn::Module& net) {
  const at::NoGradGuard no_grad;
  std::map<std::string, Tensor> parameters;
  for (const auto& entry : net.named_parameters()) parameters[entry.key()] = entry.value();
  int64_t index = 0;
  for (auto& [name, parameter] : parameters) {
    const auto k = at::arange(parameter.numel(), at::kLong);
    const auto whole = (k * k % kPrime * 40503 + k * 7919 + ++index * 977) % kPrime;
    const auto noise = whole.to(at::kDouble) / kPrime - 0.5;
    const bool matrix = parameter.dim() > 1;
    const double scale = matrix ? std::sqrt(3.0 / static_cast<double>(parameter.size(-1))) : 0.2;
    const double middle = !matrix && name.ends_with("weight") ? 1 : 0;
    parameter.copy_((noise * scale + middle).view_as(parameter));
  }
}

Tensor sequences(int64_t step, int64_t rows, int64_t length, int64_t vocabulary) {
  const auto row = (at::arange(rows, at::kLong) + step * rows).unsqueeze(1);
  return ((row * 37 + 11) + (row % 7 + 1) * at::arange(length, at::kLong)) % vocabulary;
}

Tensor own_rows(const Tensor& all) {
  const auto shard = data_shard();
  return all.chunk(shard.count)[static_cast<std::size_t>(shard.index)];
}

double mean_over_rows(double own) { return sum_over(all_gather(own, Group::kDp)) / dp_size(); }

void take_turns(const std::string& folder, Turn turn) {
  std::ifstream turns(folder + "/turn." + std::to_string(rank()));
  std::ofstream answers;
  if (rank() == 0) answers.open(folder + "/answers");
  for (std::string line; std::getline(turns, line) && line != "end";) {
    const auto answer = turn(std::stoi(line.substr(line.find(' ') + 1)));
    if (rank() != 0) continue;
    answers << fmt::format(
                   "{{\"ms\": [{}], \"losses\": [{}], \"page_faults\": [{}], \"busiest_share\": "
                   "[{}]}}\n",
                   fmt::join(answer.milliseconds, ", "), fmt::join(answer.losses, ", "),
                   fmt::join(answer.page_faults, ", "), fmt::join(answer.busiest_share, ", "))
            << std::flush;
  }
}

}  // namespace smp::perf::peers
