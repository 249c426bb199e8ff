// Defines an array of the size of each type whose members depend on NDEBUG in LLVM's headers. check.sh compiles this file with
// and without NDEBUG and compares the sizes of the arrays.
#include "llvm/Config/llvm-config.h"
#include "llvm/MC/MCSchedule.h"
// These headers include generated headers, which a layer with a part of LLVM may lack.
#if LLVM_VERSION_MAJOR >= 22 && __has_include("llvm/IR/Attributes.inc")
#define WITH_IR
#include "llvm/SandboxIR/Value.h"
#include "llvm/Transforms/Utils/Local.h"
#endif

extern "C" {
char layout_MCSchedClassDesc[sizeof(llvm::MCSchedClassDesc)];
#ifdef WITH_IR
char layout_OverflowTracking[sizeof(llvm::OverflowTracking)];
char layout_SandboxValue[sizeof(llvm::sandboxir::Value)];
#endif
}
