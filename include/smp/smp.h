// smp/smp.h: everything a training program needs.
#pragma once

#include "smp/codec.h"
#include "smp/config.h"
#include "smp/delayed_init.h"
#include "smp/distributed_model.h"
#include "smp/distributed_optimizer.h"
#include "smp/error.h"
#include "smp/module.h"
#include "smp/nn.h"
#include "smp/placement.h"
#include "smp/plan.h"
#include "smp/run_log.h"
#include "smp/session.h"
#include "smp/step.h"
#include "smp/step_output.h"
#include "smp/topology.h"
