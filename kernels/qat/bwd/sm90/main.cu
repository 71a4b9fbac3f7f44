// fg_sdpa_bwd_sm90_main with NVFP4 fake-quantised P feeding dV: the wgmma backward's fused pass, defines, parameters and launch
// (sdpa/bwd/sm90/README.md), over the quantised copies of Q, K and V. Which defines are meant to be used here: README.md in this folder.
#include "qat/bwd/sm90/p_fake.cuh"
#include "sdpa/bwd/sm90/main.cu"
