# Leave out the sources that mlir-tblgen does not need.
#
# mlir-tblgen links a third of LLVMSupport's objects and one of LLVMDemangle's. It includes one generated header, for which
# llvm-min-tblgen needs one emitter. The other sources take a third of the CPU time of the build, and mlir-tblgen is the same
# without them. The lists hold what LLVM 19.1.7, 21.1.8, 22.1.8 and 23.1.1 need. If another LLVM needs more sources, its build
# fails, and build.sh builds it again from all sources.
set(TOOLCHAIN_LINKED_LLVMDemangle ItaniumDemangle.cpp)
set(TOOLCHAIN_LINKED_LLVMSupport
  ABIBreak.cpp APFloat.cpp APInt.cpp CommandLine.cpp ConvertUTF.cpp ConvertUTFWrapper.cpp CrashRecoveryContext.cpp
  Debug.cpp DebugCounter.cpp Errno.cpp Error.cpp ErrorHandling.cpp ExtensibleRTTI.cpp FoldingSet.cpp
  FormatVariadic.cpp GraphWriter.cpp InitLLVM.cpp IntegerInclusiveInterval.cpp Jobserver.cpp JSON.cpp
  ManagedStatic.cpp MD5.cpp MemAlloc.cpp MemoryBuffer.cpp NativeFormatting.cpp Optional.cpp Path.cpp PrettyStackTrace.cpp
  Process.cpp Program.cpp RandomNumberGenerator.cpp raw_ostream.cpp regcomp.c regerror.c Regex.cpp regexec.c regfree.c
  regstrlcpy.c RISCVISAUtils.cpp Signals.cpp Signposts.cpp SmallPtrSet.cpp SmallVector.cpp SourceMgr.cpp Statistic.cpp
  StringExtras.cpp StringMap.cpp StringRef.cpp StringSaver.cpp Threading.cpp Timer.cpp ToolOutputFile.cpp Twine.cpp
  TypeSize.cpp Unicode.cpp VirtualFileSystem.cpp Watchdog.cpp WithColor.cpp xxhash.cpp YAMLParser.cpp)
set(TOOLCHAIN_LINKED_obj.LLVMTableGenBasic TableGen.cpp VTEmitter.cpp)

function(_toolchain_link_only)
  foreach(target IN ITEMS LLVMDemangle LLVMSupport obj.LLVMTableGenBasic)
    if(NOT TARGET "${target}")
      continue()
    endif()
    get_target_property(sources "${target}" SOURCES)
    set(linked "")
    foreach(source IN LISTS sources)
      get_filename_component(name "${source}" NAME)
      if(name IN_LIST TOOLCHAIN_LINKED_${target})
        list(APPEND linked "${source}")
      endif()
    endforeach()
    # A library cannot be without sources.
    if(linked)
      set_property(TARGET "${target}" PROPERTY SOURCES "${linked}")
    endif()
  endforeach()
endfunction()

cmake_language(DEFER DIRECTORY "${CMAKE_SOURCE_DIR}" CALL _toolchain_link_only)
