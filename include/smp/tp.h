// smp/tp.h: tensor parallelism: layers that are spread over ranks which read different samples
// (paper §5; docs/tensor_parallelism.md).
#pragma once

#include "smp/detail/tensor_parallelism.h"
#include "smp/tp/batch_primitives.h"
#include "smp/tp/chunked_cross_entropy.h"
#include "smp/tp/distributed_attention_core.h"
#include "smp/tp/distributed_decoder_layer.h"
#include "smp/tp/distributed_embedding.h"
#include "smp/tp/distributed_gated_mlp.h"
#include "smp/tp/distributed_grouped_query_attention.h"
#include "smp/tp/distributed_layer_norm.h"
#include "smp/tp/distributed_linear.h"
#include "smp/tp/distributed_lm_head.h"
#include "smp/tp/distributed_mixture_of_experts.h"
#include "smp/tp/distributed_module.h"
#include "smp/tp/distributed_transformer.h"
#include "smp/tp/distributed_vocabulary.h"
#include "smp/tp/primitives.h"
#include "smp/tp/replacement.h"
#include "smp/tp/split_cross_entropy.h"
