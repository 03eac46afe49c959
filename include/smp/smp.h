// smp/smp.h: everything a training program needs.
//
// "Threads: the rank's" in these headers: only the thread that called smp::init() may use it.
// Bodies of steps and modules run on fibers of that thread.
#pragma once

#include "smp/checkpoint.h"
#include "smp/clip_grad.h"
#include "smp/codec.h"
#include "smp/comm_hook.h"
#include "smp/config.h"
#include "smp/delayed_init.h"
#include "smp/detail/tensor_parallelism.h"
#include "smp/distributed_model.h"
#include "smp/distributed_optimizer.h"
#include "smp/distributed_sampler.h"
#include "smp/error.h"
#include "smp/grad.h"
#include "smp/join.h"
#include "smp/module.h"
#include "smp/nn.h"
#include "smp/norms.h"
#include "smp/placement.h"
#include "smp/plan.h"
#include "smp/precision/grad_scaler.h"
#include "smp/report_error.h"
#include "smp/run_log.h"
#include "smp/session.h"
#include "smp/state_dict.h"
#include "smp/step.h"
#include "smp/step_output.h"
#include "smp/topology.h"
#include "smp/tp.h"
#include "smp/wait.h"
