// fg_sdpa_bwd_main with NVFP4 fake-quantised P feeding dV: the SDPA backward's fused pass, defines, parameters and launch
// (sdpa/bwd/mma/README.md), over the quantised copies of Q, K and V. Which defines are meant to be used here: README.md in this folder.
#include "qat/bwd/mma/p_fake.cuh"
#include "sdpa/bwd/mma/main.cu"
