// smp/data/data.h: from files of text or tokens to the batches of a language model (docs/data.md).
// Knows of no ranks: who trains with replicas says which of them this is.
#pragma once

#include "smp/data/documents.h"
#include "smp/data/sentencepiece.h"
#include "smp/data/token_loader.h"
#include "smp/data/token_shard.h"
#include "smp/data/tokenizer.h"
