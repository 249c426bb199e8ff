// Asks for a kernel, as a program does, and prints what it was told and the version of the AOTriton it was compiled against.
// There is no GPU, so the library must come back with an error, and HIP must say that there is no device.
#include <aotriton/config.h>
#include <aotriton/flash.h>

#include <hip/hip_runtime.h>

#include <cstdio>

int main() {
  // Its constructor lives in the library: without it this neither links nor starts.
  aotriton::v3::flash::attn_fwd_params parameters;
  if (parameters.Max_seqlen_q != 0)
    return 1;
  int devices = 0;
  if (hipGetDevice(&devices) == hipSuccess) {
    std::printf("there is a GPU, and no kernel is run on it\n");
  } else {
    // Batch, heads, length, head; never read, since no kernel is found.
    const aotriton::TensorView<4> tensor(16, {1, 1, 64, 64}, {4096, 4096, 64, 1}, aotriton::DType::kFloat16);
    parameters.Q = parameters.K = parameters.V = parameters.Out = tensor;
    const auto said =
        aotriton::v3::flash::attn_fwd(parameters, aotriton::v3::flash::attn_fwd_params::kVersion, nullptr, nullptr);
    std::printf("asked for a kernel: error %d, HIP: error %d\n", static_cast<int>(said),
                static_cast<int>(hipPeekAtLastError()));
    if (said == hipSuccess)
      return 1;
  }
  std::printf("aotriton %u.%u.%u\n", AOTRITON_VERSION_MAJOR, AOTRITON_VERSION_MINOR, AOTRITON_VERSION_PATCH);
  return 0;
}
