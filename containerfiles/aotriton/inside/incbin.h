// The part of the submodule incbin that AOTriton 0.7 uses, for a source without submodules. INCBIN(name, "file") defines
// the bytes of a file as PREFIX name_data and their number as the 32-bit PREFIX name_size; PREFIX is INCBIN_PREFIX.
#pragma once

#define TOOLCHAIN_TEXT_(text) #text
#define INCBIN_STRINGIZE(text) TOOLCHAIN_TEXT_(text)
#define TOOLCHAIN_JOIN_(a, b) a##b
#define TOOLCHAIN_JOIN(a, b) TOOLCHAIN_JOIN_(a, b)

#define INCBIN(name, file) TOOLCHAIN_FILE(TOOLCHAIN_JOIN(INCBIN_PREFIX, name), file)
#define TOOLCHAIN_FILE(symbol, file) TOOLCHAIN_FILE_(symbol, file)
#define TOOLCHAIN_FILE_(symbol, file)                                                                                  \
  __asm__(".section .rodata\n"                                                                                         \
          ".balign 4096\n" #symbol "_data:\n"                                                                          \
          ".incbin \"" file "\"\n" #symbol "_end:\n"                                                                   \
          ".balign 16\n" #symbol "_size:\n"                                                                           \
          ".int " #symbol "_end - " #symbol "_data\n"                                                                  \
          ".previous\n");                                                                                              \
  extern "C" const unsigned char symbol##_data[];                                                                      \
  extern "C" const unsigned int symbol##_size
