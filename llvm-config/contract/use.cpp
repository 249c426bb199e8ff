// Uses an LLVM layer like Triton: it parses MLIR text, lowers it to the LLVM dialect, translates it to LLVM IR, and
// compiles it to an object for gfx942, which lld links in this process, and to PTX for sm_90.
//
// usage: contract-use DIR    writes DIR/axpy.o, DIR/axpy.co (with lld) and DIR/axpy.ptx
//
// It calls the code generators through LLVM's C API, because this API is the same in all versions that Triton has used. The
// C++ functions changed their parameters from StringRef to Triple one by one.

#include "mlir/Conversion/ArithToLLVM/ArithToLLVM.h"
#include "mlir/Conversion/ControlFlowToLLVM/ControlFlowToLLVM.h"
#include "mlir/Conversion/FuncToLLVM/ConvertFuncToLLVM.h"
#include "mlir/Conversion/GPUToNVVM/GPUToNVVMPass.h"
#include "mlir/Conversion/GPUToROCDL/GPUToROCDLPass.h"
#include "mlir/Conversion/MathToLLVM/MathToLLVM.h"
#include "mlir/Conversion/ReconcileUnrealizedCasts/ReconcileUnrealizedCasts.h"
#include "mlir/Conversion/SCFToControlFlow/SCFToControlFlow.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/ControlFlow/IR/ControlFlow.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Dialect/GPU/IR/GPUDialect.h"
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/Dialect/LLVMIR/NVVMDialect.h"
#include "mlir/Dialect/LLVMIR/ROCDLDialect.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/MLIRContext.h"
#include "mlir/Parser/Parser.h"
#include "mlir/Pass/Pass.h"
#include "mlir/Pass/PassManager.h"
#include "mlir/Pass/PassRegistry.h"
#include "mlir/Target/LLVMIR/Dialect/Builtin/BuiltinToLLVMIRTranslation.h"
#include "mlir/Target/LLVMIR/Dialect/GPU/GPUToLLVMIRTranslation.h"
#include "mlir/Target/LLVMIR/Dialect/LLVMIR/LLVMToLLVMIRTranslation.h"
#include "mlir/Target/LLVMIR/Dialect/NVVM/NVVMToLLVMIRTranslation.h"
#include "mlir/Target/LLVMIR/Dialect/ROCDL/ROCDLToLLVMIRTranslation.h"
#include "mlir/Target/LLVMIR/Export.h"

#include "llvm/IR/LLVMContext.h"
#include "llvm/IR/Module.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/raw_ostream.h"

#include "llvm-c/Core.h"
#include "llvm-c/Error.h"
#include "llvm-c/Target.h"
#include "llvm-c/TargetMachine.h"
#include "llvm-c/Transforms/PassBuilder.h"

#ifdef CONTRACT_LLD
#include "lld/Common/Driver.h"
LLD_HAS_DRIVER(elf)
#endif

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <string>

// Some functions changed their names, and some exist since LLVM 18 or 20. A function of the layer takes precedence over the
// template of the same name, so the template is used only if the layer lacks the function. The program detects names and
// not versions, because pins lie between releases. (mlir/Conversion/Passes.h registers all conversions under stable names,
// but takes a minute to compile.)
namespace absent {
template <typename = void> std::nullptr_t createConvertGpuOpsToNVVMOps() { return nullptr; }
template <typename = void> std::nullptr_t createLowerGpuOpsToNVVMOpsPass() { return nullptr; }
template <typename = void> std::nullptr_t createConvertGpuOpsToROCDLOps() { return nullptr; }
template <typename = void> std::nullptr_t createLowerGpuOpsToROCDLOpsPass() { return nullptr; }
template <typename = void> std::nullptr_t createSCFToControlFlowPass() { return nullptr; }
template <typename = void> std::nullptr_t createConvertSCFToCFPass() { return nullptr; }
template <typename Registry> void registerConvertArithToLLVMInterface(Registry &) {}
template <typename Registry> void registerConvertControlFlowToLLVMInterface(Registry &) {}
template <typename Registry> void registerConvertFuncToLLVMInterface(Registry &) {}
} // namespace absent

static void registerPasses() {
  using namespace mlir;
  using namespace absent;
  registerPass([]() -> std::unique_ptr<Pass> {
    std::unique_ptr<Pass> pass = createConvertGpuOpsToROCDLOps();
    if (!pass)
      pass = createLowerGpuOpsToROCDLOpsPass();
    return pass;
  });
  registerPass([]() -> std::unique_ptr<Pass> {
    std::unique_ptr<Pass> pass = createSCFToControlFlowPass();
    if (!pass)
      pass = createConvertSCFToCFPass();
    return pass;
  });
  registerPass([]() -> std::unique_ptr<Pass> {
    std::unique_ptr<Pass> pass = createConvertGpuOpsToNVVMOps();
    if (!pass)
      pass = createLowerGpuOpsToNVVMOpsPass();
    return pass;
  });
  registerPass([]() -> std::unique_ptr<Pass> { return createConvertMathToLLVMPass(); });
  registerPass([]() -> std::unique_ptr<Pass> { return createReconcileUnrealizedCastsPass(); });
}

/// Since LLVM 20 the two GPU lowerings get the patterns of other dialects from these functions.
static void registerInterfaces(mlir::DialectRegistry &registry) {
  using namespace mlir;
  using namespace mlir::arith;
  using namespace mlir::cf;
  using namespace absent;
  registerConvertArithToLLVMInterface(registry);
  registerConvertControlFlowToLLVMInterface(registry);
  registerConvertFuncToLLVMInterface(registry);
}

static const char *const kernel = R"(
gpu.module @contract {
  gpu.func @axpy(%x: !llvm.ptr<1>, %y: !llvm.ptr<1>, %a: f32, %n: i32) kernel {
    %width = arith.constant 64 : index
    %block = gpu.block_id x
    %lane = gpu.thread_id x
    %start = arith.muli %block, %width : index
    %wide = arith.addi %start, %lane : index
    %i = arith.index_cast %wide : index to i32
    %inside = arith.cmpi slt, %i, %n : i32
    scf.if %inside {
      %px = llvm.getelementptr %x[%i] : (!llvm.ptr<1>, i32) -> !llvm.ptr<1>, f32
      %py = llvm.getelementptr %y[%i] : (!llvm.ptr<1>, i32) -> !llvm.ptr<1>, f32
      %vx = llvm.load %px : !llvm.ptr<1> -> f32
      %vy = llvm.load %py : !llvm.ptr<1> -> f32
      %sum = math.fma %a, %vx, %vy : f32
      llvm.store %sum, %py : f32, !llvm.ptr<1>
    }
    gpu.return
  }
}
)";

[[noreturn]] static void fail(const std::string &what) {
  llvm::errs() << "contract-use: " << what << "\n";
  std::exit(1);
}

static void write(const std::string &path, llvm::StringRef bytes) {
  std::error_code error;
  llvm::raw_fd_ostream out(path, error, llvm::sys::fs::OF_None);
  if (error)
    fail(path + ": " + error.message());
  out << bytes;
  llvm::outs() << path << " " << bytes.size() << " bytes\n";
}

/// Lowers the kernel by `lowering`, a pass on gpu.module, and compiles it for one processor.
static std::string compile(mlir::MLIRContext &context, const std::string &lowering, const char *triple,
                           const char *processor, const char *features, LLVMCodeGenFileType kind) {
  mlir::OwningOpRef<mlir::ModuleOp> module = mlir::parseSourceString<mlir::ModuleOp>(kernel, &context);
  if (!module)
    fail("the MLIR text does not parse");
  mlir::PassManager passes(&context);
  std::string pipeline = "builtin.module(gpu.module(convert-scf-to-cf,convert-math-to-llvm," + lowering +
                         ",reconcile-unrealized-casts))";
  mlir::FailureOr<mlir::OpPassManager> parsed = mlir::parsePassPipeline(pipeline);
  if (mlir::failed(parsed))
    fail("no such passes: " + pipeline);
  static_cast<mlir::OpPassManager &>(passes) = *parsed;
  if (mlir::failed(passes.run(*module)))
    fail("lowering by " + lowering + " failed");

  llvm::LLVMContext llvmContext;
  mlir::Operation *device = nullptr;
  module->walk([&](mlir::gpu::GPUModuleOp op) { device = op; });
  std::unique_ptr<llvm::Module> translated = mlir::translateModuleToLLVMIR(device, llvmContext, "contract");
  if (!translated)
    fail("translation to LLVM IR failed");
  LLVMModuleRef ir = llvm::wrap(translated.get());

  char *message = nullptr;
  LLVMTargetRef target = nullptr;
  if (LLVMGetTargetFromTriple(triple, &target, &message))
    fail(message);
  LLVMTargetMachineRef machine = LLVMCreateTargetMachine(target, triple, processor, features,
                                                         LLVMCodeGenLevelAggressive, LLVMRelocPIC, LLVMCodeModelDefault);
  if (!machine)
    fail(std::string("no target machine for ") + triple);
  LLVMSetTarget(ir, triple);
  LLVMTargetDataRef layout = LLVMCreateTargetDataLayout(machine);
  LLVMSetModuleDataLayout(ir, layout);
  LLVMPassBuilderOptionsRef options = LLVMCreatePassBuilderOptions();
  LLVMPassBuilderOptionsSetVerifyEach(options, 1);
  if (LLVMErrorRef error = LLVMRunPasses(ir, "default<O2>", machine, options))
    fail(LLVMGetErrorMessage(error));
  LLVMMemoryBufferRef buffer = nullptr;
  if (LLVMTargetMachineEmitToMemoryBuffer(machine, ir, kind, &message, &buffer))
    fail(message);
  std::string bytes(LLVMGetBufferStart(buffer), LLVMGetBufferSize(buffer));
  LLVMDisposeMemoryBuffer(buffer);
  LLVMDisposePassBuilderOptions(options);
  LLVMDisposeTargetData(layout);
  LLVMDisposeTargetMachine(machine);
  return bytes;
}

int main(int argc, char **argv) {
  if (argc != 2)
    fail("usage: contract-use DIR");
  const std::string folder = argv[1];

  LLVMInitializeAMDGPUTargetInfo();
  LLVMInitializeAMDGPUTarget();
  LLVMInitializeAMDGPUTargetMC();
  LLVMInitializeAMDGPUAsmParser();
  LLVMInitializeAMDGPUAsmPrinter();
  LLVMInitializeNVPTXTargetInfo();
  LLVMInitializeNVPTXTarget();
  LLVMInitializeNVPTXTargetMC();
  LLVMInitializeNVPTXAsmPrinter();

  registerPasses();

  mlir::DialectRegistry registry;
  registry.insert<mlir::arith::ArithDialect, mlir::cf::ControlFlowDialect, mlir::func::FuncDialect,
                  mlir::gpu::GPUDialect, mlir::LLVM::LLVMDialect, mlir::math::MathDialect, mlir::NVVM::NVVMDialect,
                  mlir::ROCDL::ROCDLDialect, mlir::scf::SCFDialect>();
  registerInterfaces(registry);
  mlir::registerBuiltinDialectTranslation(registry);
  mlir::registerGPUDialectTranslation(registry);
  mlir::registerLLVMDialectTranslation(registry);
  mlir::registerNVVMDialectTranslation(registry);
  mlir::registerROCDLDialectTranslation(registry);
  mlir::MLIRContext context(registry);

  const std::string object = folder + "/axpy.o";
  write(object, compile(context, "convert-gpu-to-rocdl{chipset=gfx942}", "amdgcn-amd-amdhsa", "gfx942", "",
                        LLVMObjectFile));
#ifdef CONTRACT_LLD
  const std::string linked = folder + "/axpy.co";
  const char *arguments[] = {"ld.lld", "-shared", "--no-undefined", object.c_str(), "-o", linked.c_str()};
  const lld::DriverDef drivers[] = {{lld::Gnu, &lld::elf::link}};
  const lld::Result result = lld::lldMain(arguments, llvm::outs(), llvm::errs(), drivers);
  if (result.retCode != 0)
    fail("lld refused to link " + object);
  llvm::outs() << linked << " linked in process\n";
#endif
  write(folder + "/axpy.ptx",
        compile(context, "convert-gpu-to-nvvm", "nvptx64-nvidia-cuda", "sm_90", "+ptx80", LLVMAssemblyFile));
  return 0;
}
