// The layer's clang++ compiles this file to LLVM IR for a GPU, as Triton compiles its sanitizer's runtime. It is freestanding,
// so it includes only headers of the compiler.
#include <stddef.h>
#include <stdint.h>

extern "C" uint32_t contract_sum(const uint32_t *values, size_t count) {
  uint32_t sum = 0;
  for (size_t i = 0; i < count; ++i)
    sum += values[i];
  return sum;
}
