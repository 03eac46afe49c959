// A job for jobs_test.py: trains a small net over all ranks and misbehaves as told.
//
//     integration_job train STEPS          trains
//     integration_job large STEPS          the same, with tensors that others read in this rank
//     integration_job loss STEPS [ROWS]    the same, and each rank prints the losses and a checksum
//                                          of what it holds
//     integration_job traffic STEPS [ROWS] the same, and rank 0 prints what went over which path
//     integration_job leave STEPS RANK     RANK returns from main after STEPS steps; others go on
//     integration_job throw STEPS RANK     RANK throws after STEPS steps; others go on
//     integration_job linger STEPS RANK    trains, and RANK never ends its session
//     integration_job sleep SECONDS RANK   a module on RANK sleeps in microbatch 1 of the second
//                                          step
//     integration_job watch SECONDS RANK   as sleep, and who learns that a rank is lost says when
//     integration_job mutex 0 RANK         a module on RANK holds a mutex across a remote call
//     integration_job barrier 0 RANK       a module on RANK calls MPI_Barrier in the second step
//     integration_job loop 0 RANK          a module on RANK never ends in the second step
//     integration_job catch SECONDS RANK   as sleep, in a program that catches everything for ever
//     integration_job exit 0 RANK          a module on RANK calls exit() in the second step
//     integration_job fault 0 RANK         a module on RANK writes to address 16 in the second step
//     integration_job module 0 RANK        a module on RANK throws in the second step
//     integration_job memory 0 RANK        a module on RANK asks for more memory than there is
//     integration_job hoard 0 RANK         RANK itself does, between steps
//     integration_job frame 0 RANK         a module on RANK has a frame larger than its stack
//     integration_job noexcept 0 0         a microbatch waits in a noexcept frame, another throws
//     integration_job absent SECONDS RANK  RANK sleeps before its second step
//     integration_job trial 0              the body calls MPI_Barrier, in its trial run too
//     integration_job report STEPS         trains, and main() reports what it catches
//     integration_job late STEPS           the same, and rank 0 reports two seconds late
//     integration_job doubles STEPS        trains, with parameters given to the optimizer twice
//     integration_job full STEPS           trains, with a run log where no file of it has room
//     integration_job log STEPS            trains, with a run log
//     integration_job helper STEPS RANK [SECONDS]
//                                          trains, while a child that RANK has forked sleeps
//     integration_job worker STEPS RANK    trains; a child that RANK has forked returns from main
//     integration_job exit_in_main CODE RANK
//                                          RANK calls exit(CODE) before its second step; likewise
//                                          quick_exit_in_main, vanish (_exit), terminate, abort
//     integration_job return CODE RANK     RANK throws there; main() catches that and returns CODE
//     integration_job outlive CODE RANK    the same, reports it, and the session ends after that
//     integration_job flags MS RANK        main() refuses its flags before smp::init, RANK so late
//     integration_job save STEPS RANK      RANK saves the model alone after STEPS steps
//     integration_job save_early STEPS RANK   the same, and the others go on
//     integration_job barriers STEPS RANK  RANK calls another collective than the others then
//     integration_job static STEPS CODE RANK
//                                          trains in an object that holds the session and all else,
//                                          of static duration; RANK returns CODE, others 0
//     integration_job heap STEPS CODE RANK the same in one that nobody destroys
//     integration_job plan FILE            writes the plan
#include <mpi.h>
#include <smp/smp.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "../results.h"

namespace {

constexpr int kLayers = 4;
constexpr int kFeatures = 8;
constexpr int kManySteps = 1'000'000;
constexpr int kNamedSteps = 12;  // the first ones: in static mode the last of them are replayed

double seconds_to_sleep = 0;
std::string mischief;  // of a module, in microbatch 1

constexpr std::int64_t kTooMuch = std::int64_t{1} << 50;

/// Begins far below the end of the stack, and not beside it.
[[gnu::noinline, gnu::optimize("no-stack-clash-protection")]] int touch_large_frame() {
  volatile char bytes[4 << 20];
  bytes[0] = 1;
  return bytes[0];
}

void misbehave() {
  if (seconds_to_sleep > 0) {
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds_to_sleep));
    seconds_to_sleep = 0;
  }
  if (mischief == "barrier") MPI_Barrier(MPI_COMM_WORLD);
  if (mischief == "exit") std::exit(0);
  if (mischief == "fault") *reinterpret_cast<volatile int*>(16) = 1;
  if (mischief == "memory") torch::empty({kTooMuch}, torch::kByte);
  if (mischief == "frame") touch_large_frame();
  if (mischief == "module") throw std::runtime_error("the mat is too short");
  volatile bool for_ever = mischief == "loop";
  while (for_ever) {
  }
}

struct LayerImpl : torch::nn::Module {
  LayerImpl() : linear(register_module("linear", smp::nn::Linear(kFeatures, kFeatures))) {}
  at::Tensor forward(const at::Tensor& x) {
    if (smp::current_microbatch() == 1) misbehave();
    return x + linear(x).tanh();
  }
  smp::nn::Linear linear;
};
SMP_MODULE(Layer);

/// Takes so long that its caller's rank begins other microbatches meanwhile, however many cores.
struct SlowImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    return x.tanh();
  }
};
SMP_MODULE(Slow);

/// Calls a layer of another rank, with a mutex held if it is told to.
struct GuardedImpl : torch::nn::Module {
  GuardedImpl() : inner(register_module("inner", Slow())) {}
  at::Tensor forward(const at::Tensor& x) {
    std::unique_lock lock(mutex, std::defer_lock);
    if (mischief == "mutex") lock.lock();
    return smp::wait(inner(x));
  }
  inline static std::mutex mutex;  // a member that forward locks would be state
  Slow inner;
};
SMP_MODULE(Guarded);

/// Its linear layers are spread over tensor-parallel ranks, if there are several.
smp::nn::Sequential make_net(bool guarded = false) {
  torch::manual_seed(1);
  const smp::tensor_parallelism spread;
  smp::nn::Sequential net;
  for (int i = 0; i < kLayers; ++i) net->push_back(Layer());
  if (guarded) net->push_back(Guarded());
  return net;
}

/// Rows, features and batches all differ: who takes a row, a microbatch or a step for another one
/// computes other bits.
at::Tensor batch(int rows, int number) {
  constexpr std::int64_t kPrime = 20'000'003;  // more than a batch has elements
  const auto elements =
      torch::arange(std::int64_t{rows} * kFeatures) + std::int64_t{12'347} * number;
  const auto numbers = (elements * 1'000'003 % kPrime).to(torch::kDouble) / kPrime - 0.5;
  return numbers.to(torch::kFloat).reshape({rows, kFeatures});
}

/// What one rank is told to do.
struct Orders {
  std::string action;
  double amount = 0;  // steps or seconds
  int rank = -1;
  int rows = 8;
  double seconds = 1;  // that a helper sleeps
  bool are_mine() const { return smp::rank() == rank; }
};

/// The disk has no room for what each rank writes down as it works, only for small files.
void fill_disk() {
  std::signal(SIGXFSZ, SIG_IGN);
  const rlimit limit{1 << 20, 1 << 20};
  ::setrlimit(RLIMIT_FSIZE, &limit);
}

smp::RunLogOptions in_temporary_folder() {
  smp::RunLogOptions options;
  options.parent_folder = std::filesystem::temp_directory_path() / "smp_integration_job";
  return options;
}

bool prints_results(const std::string& action) { return action == "loss" || action == "traffic"; }

/// One write, so that lines of several ranks do not mix.
void say(const std::string& line) { std::cout << line + "\n" << std::flush; }

/// What went over which path, in one line.
void say_traffic(const smp::RunLog& log) {
  std::ifstream file(log.folder() + "/traffic.json");
  std::string text{std::istreambuf_iterator<char>(file), {}};
  std::replace(text.begin(), text.end(), '\n', ' ');
  say("traffic " + text);
}

/// By the clock that all processes of a machine share.
void say_when_a_loss_is_known() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  say("rank " + std::to_string(smp::rank()) + " knows at " +
      std::to_string(std::chrono::nanoseconds(now).count()));
}

bool only_trains(const std::string& action) {
  return prints_results(action) || action == "train" || action == "large" || action == "report" ||
         action == "doubles" || action == "full" || action == "log" || action == "linger" ||
         action == "helper" || action == "worker" || action == "save" || action == "barriers";
}

/// In the second step, or before it.
void begin_mischief(const Orders& orders) {
  if (orders.action == "sleep" || orders.action == "catch" || orders.action == "watch")
    seconds_to_sleep = orders.amount;
  if (orders.action == "absent") {
    std::this_thread::sleep_for(std::chrono::duration<double>(orders.amount));
  }
  if (orders.action == "hoard") torch::empty({kTooMuch}, torch::kByte);
  const auto code = static_cast<int>(orders.amount);
  if (orders.action == "exit_in_main") std::exit(code);
  if (orders.action == "quick_exit_in_main") std::quick_exit(code);
  if (orders.action == "vanish") ::_exit(code);
  if (orders.action == "terminate") std::terminate();
  if (orders.action == "abort") std::abort();
  if (orders.action == "return" || orders.action == "outlive") {
    throw std::runtime_error("the disk is full");
  }
  mischief = orders.action;
}

/// A child of this rank, as that of a program which reads its data in other processes.
class Helper {
 public:
  explicit Helper(double seconds) : process_(::fork()) {
    if (process_ > 0) return;
    say("helper pid " + std::to_string(::getpid()));
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
    say("the helper is done");
    std::exit(0);
  }
  /// In good order.
  void wait() const {
    int status = -1;
    ::waitpid(process_, &status, 0);
    say("the helper ended with status " + std::to_string(status));
  }

 private:
  const pid_t process_;
};

void save_alone(const Orders& orders, const smp::DistributedModelBase& model) {
  const auto file = std::filesystem::temp_directory_path() / "smp_integration_job.safetensors";
  if (orders.are_mine()) smp::save_safetensors(model, file);
}

/// What ranks do after their steps that they should all do alike.
void end_oddly(const Orders& orders, const smp::DistributedModelBase& model) {
  if (orders.action == "save") save_alone(orders, model);
  if (orders.action != "barriers") return;
  if (orders.are_mine()) {
    smp::all_gather(orders.rank, smp::Group::kPp);
  } else {
    smp::barrier();
  }
}

int train(const Orders& orders) {
  const bool guarded = orders.action == "mutex" || orders.action == "noexcept";
  smp::DistributedModel model(make_net(guarded));
  // The second microbatch gets there while the first one waits for another rank.
  const int stages = guarded ? 1 : smp::pp_size();
  for (int i = 0; i < kLayers; ++i) model.set_partition(std::to_string(i), i % stages);
  if (guarded) {
    model.set_partition("4", 0);
    model.set_partition("4.inner", 1);
  }
  std::optional<smp::RunLog> log;
  if (orders.action == "full") fill_disk();
  if (orders.action == "full" || orders.action == "log" || orders.action == "traffic") {
    log.emplace(orders.action, model, in_temporary_folder());
  }
  std::optional<Helper> helper;
  if (orders.action == "helper" && orders.are_mine()) helper.emplace(orders.seconds);
  if (orders.action == "worker" && orders.are_mine() && ::fork() == 0) return 0;
  auto parameters = model.parameters();
  if (orders.action == "doubles") parameters.push_back(parameters.front());
  smp::DistributedOptimizer optimizer(model, torch::optim::SGD(parameters, 1e-3));
  auto step = smp::step([&](at::Tensor x, at::Tensor target) {
    if (orders.action == "trial") MPI_Barrier(MPI_COMM_WORLD);
    const auto loss_of = [&] { return (model(x) - target).square().mean(); };
    const bool must_not_throw = mischief == "noexcept";
    if (must_not_throw && smp::current_microbatch() == 1) throw std::runtime_error("the other one");
    auto loss = must_not_throw ? [&]() noexcept { return loss_of(); }() : loss_of();
    model.backward(loss);
    return loss;
  });
  const bool trains = only_trains(orders.action);
  const bool leaves = orders.action == "leave" || orders.action == "throw";
  const int last = trains ? static_cast<int>(orders.amount) : leaves ? kManySteps : 3;
  const auto run_step = [&](int number) {
    try {
      return step(batch(orders.rows, number), batch(orders.rows, -number));
    } catch (const smp::PeerLostError&) {
      if (orders.action == "watch") say_when_a_loss_is_known();
      throw;
    }
  };
  std::vector<double> losses;
  for (int number = 1; number <= last; ++number) {
    if (!trains && !leaves && number == 2 && orders.are_mine()) begin_mischief(orders);
    optimizer.zero_grad();
    const auto loss = run_step(number);
    optimizer.step();
    if (orders.action == "save_early" && number == orders.amount) save_alone(orders, model);
    if (log) log->append({{"loss", loss.reduce_mean().item<double>()}});
    if (prints_results(orders.action)) losses.push_back(loss.reduce_mean().item<double>());
    if (smp::rank() == 0 && number <= kNamedSteps) {
      std::cout << "step " + std::to_string(number) << std::endl;
    }
    if (!leaves || number < orders.amount || !orders.are_mine()) continue;
    if (orders.action == "leave") return 0;
    if (orders.action == "throw") throw std::runtime_error("the disk is full");
  }
  end_oddly(orders, model);
  if (helper) helper->wait();
  if (prints_results(orders.action)) say(smp::results(losses, model));
  if (log) log->finish();
  if (orders.action == "traffic" && smp::rank() == 0) say_traffic(*log);
  if (log && smp::rank() == 0) std::filesystem::remove_all(log->folder());
  while (orders.action == "linger" && orders.are_mine()) ::pause();
  return 0;
}

int act(int argc, char** argv) {
  say("rank " + std::to_string(smp::rank()) + " pid " + std::to_string(::getpid()));
  Orders orders{argc > 1 ? argv[1] : "train", 3};
  if (orders.action == "plan") {
    smp::DistributedModel model(make_net());
    model.place();
    if (smp::rank() == 0) model.plan().write(argv[2]);
    return 0;
  }
  if (argc > 2) orders.amount = std::stod(argv[2]);
  if (prints_results(orders.action) || orders.action == "large") orders.rows = 100'000;
  if (argc > 3) (prints_results(orders.action) ? orders.rows : orders.rank) = std::stoi(argv[3]);
  if (argc > 4) orders.seconds = std::stod(argv[4]);
  if (orders.action != "catch") return train(orders);
  for (;;) {
    try {
      train(orders);
    } catch (...) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }
}

smp::Session start(int& argc, char** argv) { return smp::init(argc, argv, {.microbatches = 4}); }

int run(int argc, char** argv) {
  auto session = start(argc, argv);
  return act(argc, argv);
}

/// As programs do that have a way of their own to say how they ended.
int run_and_return(int argc, char** argv, int code) {
  try {
    return run(argc, argv);
  } catch (const std::exception&) {
    return code;
  }
}

/// As samples do.
int refuse_flags(int milliseconds, const std::string& late_rank) {
  try {
    const char* const rank = std::getenv("OMPI_COMM_WORLD_RANK");
    if (rank != nullptr && late_rank == rank) {
      std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
    }
    throw std::invalid_argument("unknown argument '--stepz'");
  } catch (const std::exception& error) {
    smp::report_error(error);
    return 1;
  }
}

/// All of it in one object.
struct Application {
  Application(int& argc, char** argv)
      : session(start(argc, argv)),
        model(make_net()),
        optimizer(model, torch::optim::SGD(model.parameters(), 1e-3)) {}

  void train(int steps) {
    auto step = smp::step([&](const at::Tensor& x) { model.backward(model(x).square().mean()); });
    for (int number = 1; number <= steps; ++number) {
      optimizer.zero_grad();
      step(batch(/*rows=*/8, number));
      optimizer.step();
    }
  }

  smp::Session session;
  smp::DistributedModel<smp::nn::Sequential> model;
  smp::DistributedOptimizer<torch::optim::SGD> optimizer;
};

/// As applications do whose object lives until exit(), or is never destroyed.
int leave_to_exit(int argc, char** argv) {
  static std::optional<Application> made_before;  // destroyed after what smp::init makes
  auto& application = std::string(argv[1]) == "static" ? made_before.emplace(argc, argv)
                                                       : *new Application(argc, argv);
  application.train(std::stoi(argv[2]));
  return smp::rank() == std::stoi(argv[4]) ? std::stoi(argv[3]) : 0;
}

int outlive_an_error(int argc, char** argv, int code) {
  auto session = start(argc, argv);
  try {
    return act(argc, argv);
  } catch (const std::exception& error) {
    smp::report_error(error);
    return code;
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string action = argc < 2 ? "" : argv[1];
  if (action == "return") return run_and_return(argc, argv, std::stoi(argv[2]));
  if (action == "flags") return refuse_flags(std::stoi(argv[2]), argv[3]);
  if (action == "static" || action == "heap") return leave_to_exit(argc, argv);
  if (action == "outlive") return outlive_an_error(argc, argv, std::stoi(argv[2]));
  if (action != "report" && action != "late") return run(argc, argv);
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    const char* const rank = std::getenv("OMPI_COMM_WORLD_RANK");  // there is no session any more
    if (action == "late" && std::string(rank) == "0") {
      std::this_thread::sleep_for(std::chrono::seconds(2));
    }
    smp::report_error(error);
    return 1;
  }
}
