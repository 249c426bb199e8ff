// Uses some of LLVMSupport and LLVMDemangle: strings, streams, big integers, threads, hashing and demangling.
#include "llvm/ADT/APInt.h"
#include "llvm/ADT/SmallVector.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/ADT/StringMap.h"
#include "llvm/Config/llvm-config.h"
#include "llvm/Demangle/Demangle.h"
#include "llvm/Support/MemoryBuffer.h"
#include "llvm/Support/SHA256.h"
#include "llvm/Support/raw_ostream.h"

#include <string>
#include <thread>

static int wrong(const char *what) {
  llvm::errs() << "not as it should be: " << what << "\n";
  return 1;
}

int main() {
  if (llvm::demangle("_ZN4llvm5APIntD1Ev") != "llvm::APInt::~APInt()")
    return wrong("demangle");
  llvm::APInt number(256, 1);
  number <<= 200;
  llvm::SmallString<80> digits;
  number.toStringUnsigned(digits, 16);
  if (digits != "1" + std::string(50, '0'))
    return wrong("APInt");
  llvm::StringMap<int> map;
  for (int index = 0; index < 1000; ++index)
    map[llvm::utostr(index)] = index;
  if (map.size() != 1000 || map.lookup("999") != 999)
    return wrong("StringMap");
  llvm::SHA256 hash;
  hash.update(llvm::StringRef("abc"));
  std::array<uint8_t, 32> sum = hash.final();
  if (llvm::toHex(sum, true) != "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad")
    return wrong("SHA256");
  int counted = 0;
  std::thread([&counted] { counted = 1; }).join();
  if (counted != 1 || std::string(LLVM_VERSION_STRING) != CONTRACT_VERSION)
    return wrong("threads or version");
  llvm::outs() << "LLVMSupport " << LLVM_VERSION_STRING << " for " << LLVM_HOST_TRIPLE << "\n";
  return 0;
}
