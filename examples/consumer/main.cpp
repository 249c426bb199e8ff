// Prints each argument demangled, and the version and the host triple of LLVM.
#include "llvm/Config/llvm-config.h"
#include "llvm/Demangle/Demangle.h"
#include "llvm/Support/raw_ostream.h"

int main(int count, char **words) {
  for (int index = 1; index < count; ++index)
    llvm::outs() << llvm::demangle(words[index]) << "\n";
  llvm::outs() << "by LLVM " << LLVM_VERSION_STRING << " for " << LLVM_HOST_TRIPLE << "\n";
}
