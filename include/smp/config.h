// smp/config.h: every setting of a run, with its default. docs/configuration.md lists the keys and
// the values that they take; smp::init resolves them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "smp/detail/export.h"

namespace smp {

/// Settings given in code. Each has a key of the same name that a JSON file (`--smp.config FILE`),
/// the environment (`SMP_MICROBATCHES=8`) or a flag (`--smp.microbatches 8`) may set; the order of
/// precedence is flag > environment > file > this struct > built-in default. A field that still
/// has its default value counts as not set in code.
struct SMP_API Config {
  // Degrees and placement of ranks.

  /// Number of stages the model is cut into. Default: what remains of the world size, so that
  /// `mpirun -n 4` trains over 4 stages. Older name of the key: `partitions`.
  std::optional<int> pipeline_parallel_degree = std::nullopt;
  /// Number of ranks over which distributed modules are sliced (smp/tp.h).
  int tensor_parallel_degree = 1;
  /// If true, ranks beyond `pipeline_parallel_degree` train replicas of the model, each on samples
  /// of its own: `mpirun -n 4` with 2 stages makes 2 replicas. If false, such a job is refused.
  bool ddp = true;
  /// Size of the buckets in which replicas add up gradients, in MiB; the first bucket of a step has
  /// at most 1 MiB.
  double bucket_cap_mb = 25;
  /// If true, replicas add up gradients while the backward of the last microbatch still runs, which
  /// takes memory for the sums until the end of the step. The results have the same bits either
  /// way.
  bool overlapping_allreduce = true;
  /// Treatment of replicas that start from different values: "equal" refuses them and names what
  /// differs, "first" gives all of them the values of the first replica.
  std::string initial_values = "equal";
  /// If true, every step that computes gradients begins with the buffers (running statistics) of
  /// the first replica; otherwise each replica keeps those of its own samples.
  bool broadcast_buffers = false;
  /// If true, each replica keeps the optimizer state of its share of the parameters only. As much
  /// is sent as without, but gradients and state take less memory (smp/distributed_optimizer.h).
  bool shard_optimizer_state = false;
  /// Types of the numbers that a model is made of and computes in (docs/precision.md): "fp32",
  /// "amp" (autocast in steps), "bf16" and "fp16" (parameters of 16 bits, float32 masters in the
  /// optimizer), "bf16_sr" (parameters of bfloat16, stochastic rounding). Default: as the program
  /// makes its models. Older names of the key: `bf16`, `fp16`, `fp16_params`, each true or false.
  std::string precision = {};
  /// If true, an smp::DistributedOptimizer steps parameters of bfloat16 in float32 and rounds them
  /// by chance, so that small steps are not lost; its state is float32, and no float32 copies of
  /// parameters are kept. Random bits depend on seed, step, name and element, not on the layout.
  bool stochastic_rounding = false;
  /// If true, an smp::DistributedOptimizer keeps float32 values of parameters of bfloat16 and
  /// float16, steps these, and rounds them to the parameters. Not together with the one above.
  bool master_weights = false;
  /// If true, gradients of parameters of 16 bits are added over the microbatches of a step in
  /// float32, and rounded into `.grad`. Takes 4 bytes a parameter during a step. Other name of the
  /// key: `_fp32_grad_accumulation`.
  bool fp32_grad_accumulation = true;
  /// Mapping of (replica D, stage P, tensor T) to ranks: a permutation of the three letters, whose
  /// right-most letter varies fastest, or "cluster" (DPT), or "spread" (TPD).
  std::string placement_strategy = "cluster";
  /// Layout of distributed transformer layers (docs/tensor_parallelism.md): "memory" keeps no
  /// activation twice on the ranks that share a layer, "speed" sends less between them, "sequence"
  /// cuts a batch that all of them are given along its tokens (docs/layers.md).
  std::string optimize = "memory";
  /// If true, the ranks that share distributed modules are all given the same batch, the one that
  /// smp::data_shard() names; otherwise each reads samples of its own (docs/tensor_parallelism.md).
  /// Other name of the key: `_prescaled_batch`.
  bool prescaled_batch = false;

  // Pipeline.

  /// Number of slices of each batch, the microbatches, that travel through the stages
  /// independently. With 1 the stages do not overlap; with 2 per stage or more they are kept busy,
  /// and with 4 per stage they are idle for at most a fifth of a step.
  int microbatches = 1;
  /// "interleaved" mixes forwards and backwards and so holds few activations; "simple" runs all
  /// forwards, then all backwards; "1f1b", "1f1b+N", "zero_bubble" and "zero_bubble+N" keep to
  /// lists; "file:PATH" your own (docs/schedules.md).
  std::string pipeline = "interleaved";
  /// Number of microbatches in flight under "interleaved"; fewer need less memory. Default: 2 *
  /// stages + 2.
  std::optional<int> active_microbatches = std::nullopt;

  // Placement of modules.

  /// If true, modules that are not placed by hand are split automatically; otherwise they go to
  /// `default_partition`.
  bool auto_partition = true;
  /// Stage of every module that is not placed by hand; needed if `auto_partition` is off.
  std::optional<int> default_partition = std::nullopt;
  /// Types of modules that are not cut, with commas between them: "Attention, FeedForward". Each
  /// module of such a type runs on one stage with everything below it.
  std::string keep_whole = {};
  /// Types of modules of which activations are computed again instead of held, with commas between
  /// them, as smp::set_activation_checkpointing() does for each such module.
  std::string checkpoint_modules = {};
  /// If true, each module whose type has "Attention" in its name is one of these, if it can be.
  bool checkpoint_attentions = false;
  /// Choice of what is computed again: "by_hand", what the two keys above and the program say, or
  /// "auto", also what the planner finds that it takes to fit `stage_memory`, and no more.
  std::string activation_checkpointing = "by_hand";
  /// If true, what checkpointed modules keep of a microbatch waits for its backward in memory of
  /// the host, where the device is no CPU (docs/memory.md); on CPUs it has no effect, which warns.
  bool offload_activations = false;
  /// Number of calls before whose backward it comes back to the device; 0: when it is needed.
  int activation_loading_horizon = 4;
  /// A plan to use instead of making one, as written to `plan.json` of a run. Other name of the
  /// key: `partition_file`.
  std::string plan_file = {};
  /// Algorithm that finds the split: "tree" (the paper's), "contiguous" (runs of modules in
  /// execution order), "search", or "best" (whichever of these is fastest in simulation).
  std::string partition_strategy = "best";
  /// Weight of memory against computation, 0 to 1 (alpha of paper App. C.3): in a module's cost if
  /// `partition_strategy` is "tree" or "contiguous" or nothing is known of times, else in what it
  /// counts that a stage is nearly full.
  double memory_weight = 0.8;
  /// If true, splits by the number of modules instead of running the model once to see what they
  /// cost.
  bool skip_tracing = false;
  /// Source of the costs of modules and messages. 0: what is known of operators and machines, the
  /// same at every start. k > 0: a clock, with the median of k runs for modules; then two runs of
  /// one program may get different plans.
  int trace_repeats = 0;
  /// Number of the first step's microbatches that are traced, for models whose work differs between
  /// microbatches: a module then costs its average over them (docs/partitioning.md#costs).
  int trace_microbatches = 1;
  /// Devices that the stages compute on, to price modules by: one name for all, or one per stage
  /// with commas between them, "h100, h100, a100, cpu" (docs/partitioning.md#devices). Default: one
  /// CPU core per stage.
  std::string devices = {};
  /// Number of stages on one node, for messages that cross a network. 0: as the job runs; in a job
  /// that is only planned all stages are on one node.
  int stages_per_node = 0;
  /// Number of network adapters of a node, dealt to its stages in turn. Messages of one adapter
  /// queue.
  int network_ports = 1;
  /// Bandwidth of each adapter, in Gbit/s, one way.
  double network_gbit = 100;
  /// Relative speed of each stage, for machines that differ; default: all alike. With `devices` it
  /// multiplies the speed of the stage's device.
  std::vector<double> stage_speeds = {};
  /// Memory of each stage in GiB (one number: of every stage); a plan that needs more is refused.
  std::vector<double> stage_memory = {};
  /// Folder of plans of earlier starts, which then need no tracing: "auto" is the user's cache
  /// folder, "off" is none.
  std::string plan_cache = "auto";
  /// If true, modules built under smp::delay_param_initialization take no memory until they are
  /// placed; false makes that scope do nothing.
  bool delayed_parameter_initialization = true;

  // Numbers.

  /// Seed of dropout masks and other random numbers of the model. The same seed gives the same
  /// numbers for every number of ranks, placement and schedule.
  std::uint64_t seed = 0;
  /// Weights of the losses of microbatches in backward: "mean" (their share of the rows, so that
  /// the gradient is that of the mean over the batch), "sum" (1 each) or "weights". Gradients that
  /// modules add by themselves are not weighted: smp::microbatch_weight() (smp/step.h) tells them
  /// what the loss counts.
  std::string loss = "mean";
  /// One weight per microbatch, for `loss = "weights"`; replicas take the mean of their sums.
  std::vector<double> loss_weights = {};
  /// If true, the outputs of a step reach every stage; otherwise only the first.
  bool broadcast_outputs = true;
  /// Price of one machine an hour, in any currency, from which a program tells what its tokens cost
  /// (smp/recipe/throughput.h). 0: not known.
  double price_per_hour = 0;

  // Runtime.

  /// Device of this rank's tensors, by LibTorch's name: "cpu", or "cuda", where each rank of a
  /// machine takes a GPU, in turn (smp::device()). Tensors go from GPU to GPU of a machine without
  /// a detour through its memory. The program moves models there, before they are wrapped.
  std::string device = "cpu";
  /// Implementation of collectives of tensors among ranks that share layers (a TP_GROUP). "auto":
  /// NCCL, if every one of them can load it and has a GPU of its own, else messages between the
  /// ranks; "messages": always messages; "nccl": NCCL, or an error that says which rank cannot, and
  /// why.
  std::string device_collectives = "auto";
  /// Transport of messages. "auto": memory that two ranks of one machine share, and MPI between
  /// machines; "ucx", "ofi": the same with UCX (InfiniBand, RoCE, TCP) or libfabric (EFA, TCP)
  /// between machines; "mpi": MPI everywhere; "local": all ranks in one process on one thread, for
  /// debugging.
  std::string transport = "auto";
  /// If true, ranks that share memory lend each other large tensors instead of copying them: both
  /// go on with the same memory, and whoever writes to it first gets a copy. Pointers to elements
  /// (`data_ptr()`) taken before a tensor went to another rank must not be written through after;
  /// set it to false if your program does so.
  bool lend_tensors = true;
  /// If true, a second thread of each rank moves tensors while the rank computes, so that they are
  /// there when the rank needs them. It pays between machines (`transport = "ucx"` or "ofi") where
  /// cores are free: without shared memory, tensors move only while both ranks poll. It has no
  /// effect, and a warning says so, where tensors also go over MPI or between GPUs, because only
  /// the rank's own thread may use those paths.
  bool progress_thread = false;
  /// If true, calls of modules on other ranks return at once. The tensors that they return get
  /// their values when they are used, and go from rank to rank without a detour through the caller
  /// (smp/wait.h).
  bool promised_outputs = true;
  /// If true, steps that end like the five before them send no control messages; only requests and
  /// answers travel. The code may still take other ways at any time (paper §4.4).
  bool static_mode = false;
  /// If true, and with `static_mode` and `promised_outputs`, tensors go from rank to rank without a
  /// detour through their caller, and unasked to where they went in the steps before. If false,
  /// under `static_mode` they go through the caller of a module.
  bool fast_mode = true;
  /// Stack of each worker fiber, in bytes. Raise it if a deep module reports an overflow of its
  /// stack.
  std::int64_t fiber_stack_bytes = 1 << 20;
  /// Stall (something waits, no message moves, nothing starts) in seconds of real time after which
  /// a rank reports whom it waits for; 0 means never.
  double stall_seconds = 30;
  /// Stall in seconds after which all waits of a rank end with PeerLostError; 0 means never.
  double abort_seconds = 600;
  /// Silence in seconds after which a machine of the job counts as gone, or the network to it as
  /// cut; 0 means that ranks of different machines do not watch each other. The kernels exchange
  /// the signs of life, so a rank may compute, or be stopped, for as long as it likes.
  double keep_alive_seconds = 15;
  /// Network interface for these signs of life, by its name on this rank's machine: "eth0".
  /// Default: any interface over which the other machine is reached.
  std::string keep_alive_interface = {};
  /// Behaviour of a rank that waits: "spin" (lowest latency), "yield" (gives its core away), or
  /// "auto" (yield where ranks outnumber cores).
  std::string idle_policy = "auto";
  /// LibTorch threads per rank; 0 means the cores that the ranks of this machine may use (by their
  /// masks and the limits of their cgroup), divided by their number.
  int intra_op_threads = 0;
};

}  // namespace smp
