// Linked with all members of every library that a Triton version names. If it starts and ends, no symbol is missing in the
// libraries and no option or pass is registered twice. The calls below make the linker fail if one of the libraries is empty.

#ifdef CONTRACT_DIALECTS
#include "mlir/InitAllDialects.h"
#endif
#ifdef CONTRACT_PASSES
#include "mlir/InitAllPasses.h"
#endif
#ifdef CONTRACT_OPT
#include "mlir/Tools/mlir-opt/MlirOptMain.h"
#endif
#ifdef CONTRACT_REDUCE
#include "mlir/Tools/mlir-reduce/MlirReduceMain.h"
#endif
#ifdef CONTRACT_LSP
#include "mlir/Tools/mlir-lsp-server/MlirLspServerMain.h"
#endif
#include "mlir/IR/Dialect.h"
#include "mlir/IR/MLIRContext.h"

#include "llvm-c/Target.h"

#include <cstdio>

namespace {
using Entry = void (*)();

template <typename Function> Entry entry(Function *function) { return reinterpret_cast<Entry>(function); }

// These overloads exist in all versions.
using OptMain = mlir::LogicalResult(int, char **, llvm::StringRef, mlir::DialectRegistry &);
using ReduceMain = mlir::LogicalResult(int, char **, mlir::MLIRContext &);
using LspMain = mlir::LogicalResult(int, char **, mlir::DialectRegistry &);

volatile Entry entries[] = {
#ifdef CONTRACT_OPT
    entry<OptMain>(&mlir::MlirOptMain),
#endif
#ifdef CONTRACT_REDUCE
    entry<ReduceMain>(&mlir::mlirReduceMain),
#endif
#ifdef CONTRACT_LSP
    entry<LspMain>(&mlir::MlirLspServerMain),
#endif
    nullptr};
} // namespace

int main() {
  mlir::DialectRegistry registry;
#ifdef CONTRACT_DIALECTS
  mlir::registerAllDialects(registry);
#endif
#ifdef CONTRACT_PASSES
  mlir::registerAllPasses();
#endif
#ifdef CONTRACT_HOST
  // A Triton that names the host's code generator initialises all code generators, so the layer must not have another one.
  LLVMInitializeAllTargetInfos();
  LLVMInitializeAllTargets();
  LLVMInitializeAllTargetMCs();
  LLVMInitializeAllAsmParsers();
  LLVMInitializeAllAsmPrinters();
#endif
#ifdef CONTRACT_NVPTX
  LLVMInitializeNVPTXTarget();
#endif
#ifdef CONTRACT_AMDGPU
  LLVMInitializeAMDGPUTarget();
#endif
  mlir::MLIRContext context(registry);
  unsigned long found = 0;
  for (Entry one : entries)
    found += one != nullptr;
  std::printf("%lu dialects available, %lu entry points\n",
              static_cast<unsigned long>(context.getAvailableDialects().size()), found);
  return 0;
}
