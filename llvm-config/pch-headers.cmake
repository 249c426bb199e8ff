# The headers of each tier of pch.cmake, chosen by how many files include them and how long they take to parse.
# A header with a dynamic initialiser (<iostream>) must not be listed, because the initialiser would appear in every object.
# `support` must not include a generated header.

set(TOOLCHAIN_PCH_HEADERS_support
  <algorithm> <array> <atomic> <cassert> <cstdint> <cstring> <functional> <map> <memory> <mutex> <numeric>
  <optional> <set> <string> <string_view> <system_error> <tuple> <type_traits> <unordered_map> <utility> <variant>
  <vector>
  <llvm/ADT/APFloat.h> <llvm/ADT/APInt.h> <llvm/ADT/ArrayRef.h> <llvm/ADT/BitVector.h> <llvm/ADT/DenseMap.h>
  <llvm/ADT/FoldingSet.h> <llvm/ADT/MapVector.h> <llvm/ADT/STLExtras.h> <llvm/ADT/SetVector.h>
  <llvm/ADT/SmallPtrSet.h> <llvm/ADT/SmallSet.h> <llvm/ADT/SmallVector.h> <llvm/ADT/StringExtras.h>
  <llvm/ADT/StringMap.h> <llvm/ADT/StringRef.h> <llvm/ADT/StringSwitch.h> <llvm/ADT/Twine.h>
  <llvm/ADT/iterator_range.h>
  <llvm/Support/Allocator.h> <llvm/Support/Casting.h> <llvm/Support/CommandLine.h> <llvm/Support/Compiler.h>
  <llvm/Support/Debug.h> <llvm/Support/Endian.h> <llvm/Support/Error.h> <llvm/Support/ErrorHandling.h>
  <llvm/Support/Format.h> <llvm/Support/FormatVariadic.h> <llvm/Support/MathExtras.h>
  <llvm/Support/MemoryBuffer.h> <llvm/Support/Path.h> <llvm/Support/SourceMgr.h> <llvm/Support/raw_ostream.h>)

set(TOOLCHAIN_PCH_HEADERS_ir
  ${TOOLCHAIN_PCH_HEADERS_support}
  <llvm/ADT/DepthFirstIterator.h> <llvm/ADT/PostOrderIterator.h> <llvm/ADT/SCCIterator.h> <llvm/ADT/SparseBitVector.h>
  <llvm/ADT/Statistic.h> <llvm/BinaryFormat/Dwarf.h> <llvm/TargetParser/Triple.h>
  <llvm/IR/Attributes.h> <llvm/IR/BasicBlock.h> <llvm/IR/CFG.h> <llvm/IR/Constants.h> <llvm/IR/DataLayout.h>
  <llvm/IR/DebugInfoMetadata.h> <llvm/IR/DerivedTypes.h> <llvm/IR/DiagnosticInfo.h> <llvm/IR/Dominators.h>
  <llvm/IR/Function.h> <llvm/IR/IRBuilder.h> <llvm/IR/InstIterator.h> <llvm/IR/InstrTypes.h>
  <llvm/IR/Instructions.h> <llvm/IR/IntrinsicInst.h> <llvm/IR/Intrinsics.h> <llvm/IR/LLVMContext.h>
  <llvm/IR/MDBuilder.h> <llvm/IR/Metadata.h> <llvm/IR/Module.h> <llvm/IR/Operator.h> <llvm/IR/PassManager.h>
  <llvm/IR/PatternMatch.h> <llvm/IR/Type.h> <llvm/IR/Use.h> <llvm/IR/User.h> <llvm/IR/Value.h>
  <llvm/IR/ValueHandle.h> <llvm/InitializePasses.h> <llvm/Pass.h>
  <llvm/Analysis/AliasAnalysis.h> <llvm/Analysis/AssumptionCache.h> <llvm/Analysis/LoopInfo.h>
  <llvm/Analysis/TargetLibraryInfo.h> <llvm/Analysis/TargetTransformInfo.h> <llvm/Analysis/ValueTracking.h>)

set(TOOLCHAIN_PCH_HEADERS_codegen
  ${TOOLCHAIN_PCH_HEADERS_ir}
  <llvm/CodeGen/MachineBasicBlock.h> <llvm/CodeGen/MachineDominators.h> <llvm/CodeGen/MachineFrameInfo.h>
  <llvm/CodeGen/MachineFunction.h> <llvm/CodeGen/MachineFunctionPass.h> <llvm/CodeGen/MachineInstr.h>
  <llvm/CodeGen/MachineInstrBuilder.h> <llvm/CodeGen/MachineLoopInfo.h> <llvm/CodeGen/MachineOperand.h>
  <llvm/CodeGen/MachineRegisterInfo.h> <llvm/CodeGen/SelectionDAG.h> <llvm/CodeGen/TargetInstrInfo.h>
  <llvm/CodeGen/TargetLowering.h> <llvm/CodeGen/TargetPassConfig.h> <llvm/CodeGen/TargetRegisterInfo.h>
  <llvm/CodeGen/TargetSubtargetInfo.h> <llvm/MC/MCContext.h> <llvm/MC/MCInst.h> <llvm/MC/MCInstrInfo.h>
  <llvm/MC/MCStreamer.h> <llvm/MC/MCSubtargetInfo.h> <llvm/MC/TargetRegistry.h> <llvm/Target/TargetMachine.h>)

set(TOOLCHAIN_PCH_HEADERS_mlir
  ${TOOLCHAIN_PCH_HEADERS_support}
  <mlir/IR/AffineExpr.h> <mlir/IR/AffineMap.h> <mlir/IR/Attributes.h> <mlir/IR/Builders.h>
  <mlir/IR/BuiltinAttributes.h> <mlir/IR/BuiltinOps.h> <mlir/IR/BuiltinTypes.h> <mlir/IR/Diagnostics.h>
  <mlir/IR/Dialect.h> <mlir/IR/DialectImplementation.h> <mlir/IR/IRMapping.h> <mlir/IR/MLIRContext.h>
  <mlir/IR/Matchers.h> <mlir/IR/OpDefinition.h> <mlir/IR/OpImplementation.h> <mlir/IR/Operation.h>
  <mlir/IR/PatternMatch.h> <mlir/IR/SymbolTable.h> <mlir/IR/TypeUtilities.h> <mlir/IR/Types.h> <mlir/IR/Value.h>
  <mlir/IR/Visitors.h> <mlir/Interfaces/ControlFlowInterfaces.h> <mlir/Interfaces/FunctionInterfaces.h>
  <mlir/Interfaces/InferTypeOpInterface.h> <mlir/Interfaces/SideEffectInterfaces.h> <mlir/Pass/Pass.h>
  <mlir/Pass/PassManager.h> <mlir/Support/LLVM.h> <mlir/Transforms/DialectConversion.h>)

set(TOOLCHAIN_PCH_HEADERS_dialects
  ${TOOLCHAIN_PCH_HEADERS_mlir}
  <mlir/Conversion/LLVMCommon/Pattern.h> <mlir/Dialect/Affine/IR/AffineOps.h> <mlir/Dialect/Arith/IR/Arith.h>
  <mlir/Dialect/Bufferization/IR/BufferizableOpInterface.h> <mlir/Dialect/Bufferization/IR/Bufferization.h>
  <mlir/Dialect/Func/IR/FuncOps.h> <mlir/Dialect/GPU/IR/GPUDialect.h> <mlir/Dialect/LLVMIR/LLVMDialect.h>
  <mlir/Dialect/Linalg/IR/Linalg.h> <mlir/Dialect/MemRef/IR/MemRef.h> <mlir/Dialect/SCF/IR/SCF.h>
  <mlir/Dialect/Tensor/IR/Tensor.h> <mlir/Dialect/Vector/IR/VectorOps.h> <mlir/IR/Dominance.h>
  <mlir/Interfaces/ValueBoundsOpInterface.h> <mlir/Transforms/GreedyPatternRewriteDriver.h>)

set(TOOLCHAIN_PCH_HEADERS_devices
  ${TOOLCHAIN_PCH_HEADERS_dialects}
  <mlir/Dialect/AMDGPU/IR/AMDGPUDialect.h> <mlir/Dialect/Complex/IR/Complex.h> <mlir/Dialect/LLVMIR/NVVMDialect.h>
  <mlir/Dialect/LLVMIR/ROCDLDialect.h> <mlir/Dialect/Math/IR/Math.h> <mlir/Dialect/NVGPU/IR/NVGPUDialect.h>
  <mlir/Dialect/OpenACC/OpenACC.h> <mlir/Dialect/OpenMP/OpenMPDialect.h> <mlir/Dialect/SPIRV/IR/SPIRVDialect.h>
  <mlir/Dialect/SPIRV/IR/SPIRVOps.h> <mlir/Dialect/Tosa/IR/TosaOps.h>)

set(TOOLCHAIN_PCH_HEADERS_sema
  ${TOOLCHAIN_PCH_HEADERS_support}
  <clang/AST/ASTConsumer.h> <clang/AST/ASTContext.h> <clang/AST/Attr.h> <clang/AST/DeclCXX.h> <clang/AST/DeclObjC.h>
  <clang/AST/DeclOpenMP.h> <clang/AST/DeclTemplate.h> <clang/AST/DynamicRecursiveASTVisitor.h> <clang/AST/ExprCXX.h>
  <clang/AST/ExprObjC.h> <clang/AST/OpenMPClause.h> <clang/AST/RecursiveASTVisitor.h> <clang/AST/StmtOpenMP.h>
  <clang/AST/StmtVisitor.h> <clang/AST/TypeLoc.h> <clang/Basic/FileManager.h> <clang/Basic/SourceManager.h>
  <clang/Basic/TargetInfo.h> <clang/Lex/Lexer.h> <clang/Lex/Preprocessor.h> <clang/Sema/Initialization.h>
  <clang/Sema/Lookup.h> <clang/Sema/Sema.h> <clang/Sema/Template.h>)

set(TOOLCHAIN_PCH_DEPENDS_support "")
set(TOOLCHAIN_PCH_DEPENDS_ir intrinsics_gen vt_gen target_parser_gen analysis_gen RISCVTargetParserTableGen
  ARMTargetParserTableGen AArch64TargetParserTableGen PPCTargetParserTableGen)
set(TOOLCHAIN_PCH_DEPENDS_codegen ${TOOLCHAIN_PCH_DEPENDS_ir})
set(TOOLCHAIN_PCH_DEPENDS_mlir mlir-generic-headers)
set(TOOLCHAIN_PCH_DEPENDS_sema ${TOOLCHAIN_PCH_DEPENDS_ir} clang-tablegen-targets ClangDriverOptions omp_gen acc_gen)
# `mlir-headers` has every generated header that these lists include.
set(TOOLCHAIN_PCH_DEPENDS_dialects ${TOOLCHAIN_PCH_DEPENDS_ir} mlir-headers omp_gen acc_gen)
set(TOOLCHAIN_PCH_DEPENDS_devices ${TOOLCHAIN_PCH_DEPENDS_dialects})
