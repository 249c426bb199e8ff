// Prints the version of the AOTriton it was compiled against, after calling into the library it was linked with.
#include <aotriton/config.h>
#include <aotriton/flash.h>

#include <cstdio>

int main() {
  // Its constructor lives in the library: without it this neither links nor starts.
  aotriton::v3::flash::attn_fwd_params parameters;
  if (parameters.Max_seqlen_q != 0)
    return 1;
  std::printf("aotriton %u.%u.%u\n", AOTRITON_VERSION_MAJOR, AOTRITON_VERSION_MINOR, AOTRITON_VERSION_PATCH);
  return 0;
}
