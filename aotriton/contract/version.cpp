// Calls a kernel as a program does, and prints the error and the version of the AOTriton that it was compiled against.
// There is no GPU, so the library must return an error, and HIP must report that there is no device.
#include <aotriton/config.h>
#include <aotriton/flash.h>

#include <hip/hip_runtime.h>

#include <cstdio>

int main() {
  // The library has this class's constructor, so the program does not link without the library.
  aotriton::v3::flash::attn_fwd_params parameters;
  if (parameters.Max_seqlen_q != 0)
    return 1;
  int devices = 0;
  if (hipGetDevice(&devices) == hipSuccess) {
    std::printf("there is a GPU, and no kernel is run on it\n");
  } else {
    // Batch, heads, length and head size. Nothing reads the tensors, because no kernel is found.
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
