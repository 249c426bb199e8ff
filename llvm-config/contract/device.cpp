// Compiled by the layer's clang++ to LLVM IR for a GPU, as Triton does with its sanitizer's runtime: freestanding, so
// that the compiler's own headers are all it has.
#include <stddef.h>
#include <stdint.h>

extern "C" uint32_t contract_sum(const uint32_t *values, size_t count) {
  uint32_t sum = 0;
  for (size_t i = 0; i < count; ++i)
    sum += values[i];
  return sum;
}
