// One array for each type whose members LLVM's headers gate on NDEBUG, as large as the type. check.sh compiles this with
// NDEBUG and without, and reads the arrays' sizes.
#include "llvm/Config/llvm-config.h"
#include "llvm/MC/MCSchedule.h"
// These need generated headers, which a part of LLVM may lack.
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
