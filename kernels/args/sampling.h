#pragma once

#include "kernels/args/rows.h"

struct SamplingArgs {
  RowsArgs rows;
  RowSourceArgs logits;
  RowSourceArgs noise;
  float softcap;
  float temperature;
  float top_k;
  float top_p;
};

static_assert(sizeof(SamplingArgs) == 208, "host and shader must agree on SamplingArgs");
