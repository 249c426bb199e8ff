// Stands in for lib/Tools/LLVMOptions.cpp of Triton 3.9.0, which no wheel carries: the same promises as its header makes,
// in code of this project's own. A library that is built with it shows the recipe, and is not Triton's.

#include "triton/Tools/LLVMOptions.h"

#include "llvm/Support/CommandLine.h"

#include <condition_variable>
#include <map>
#include <mutex>
#include <unistd.h>

namespace mlir::triton::tools {
namespace {

using Settings = std::map<std::string, std::string>;

// Who uses LLVM's options at the moment: many scopes with one set, or one that has them alone.
struct Registry {
  std::mutex lock;
  std::condition_variable changed;
  Settings set;
  unsigned scopes = 0;
  bool exclusive = false;
  std::uint64_t process = 0;
};

std::uint64_t thisProcess() { return static_cast<std::uint64_t>(::getpid()); }

// A child of fork has a registry of its own: nobody uses it yet. The parent's lock may be held there for ever, so it is
// left behind, not freed.
Registry &registry() {
  static Registry *current = new Registry();
  if (current->process != thisProcess()) {
    if (current->process != 0)
      current = new Registry();
    current->process = thisProcess();
  }
  return *current;
}

void apply(const Settings &set) {
  auto &options = llvm::cl::getRegisteredOptions();
  for (const auto &[name, value] : set) {
    auto found = options.find(llvm::StringRef(name));
    if (found != options.end())
      found->second->addOccurrence(0, found->second->ArgStr, value);
  }
}

void restore(const Settings &set) {
  auto &options = llvm::cl::getRegisteredOptions();
  for (const auto &entry : set) {
    auto found = options.find(llvm::StringRef(entry.first));
    if (found != options.end())
      found->second->reset();
  }
}

} // namespace

ScopedLLVMOptions::ScopedLLVMOptions(const std::vector<Setting> &settings) {
  Settings wanted;
  for (const Setting &one : settings)
    wanted[one.first] = one.second;
  Registry &here = registry();
  std::unique_lock<std::mutex> held(here.lock);
  here.changed.wait(held, [&] {
    return !here.exclusive && (here.scopes == 0 || here.set == wanted);
  });
  if (here.scopes++ == 0) {
    here.set = wanted;
    apply(wanted);
  }
  registryGeneration = here.process;
}

ScopedLLVMOptions::~ScopedLLVMOptions() {
  if (registryGeneration != thisProcess())
    return;
  Registry &here = registry();
  std::lock_guard<std::mutex> held(here.lock);
  if (--here.scopes == 0) {
    restore(here.set);
    here.set.clear();
    here.changed.notify_all();
  }
}

ExclusiveLLVMOptionAccess::ExclusiveLLVMOptionAccess() {
  Registry &here = registry();
  std::unique_lock<std::mutex> held(here.lock);
  here.changed.wait(held, [&] { return !here.exclusive && here.scopes == 0; });
  here.exclusive = true;
  registryGeneration = here.process;
}

ExclusiveLLVMOptionAccess::~ExclusiveLLVMOptionAccess() {
  if (registryGeneration != thisProcess())
    return;
  Registry &here = registry();
  std::lock_guard<std::mutex> held(here.lock);
  llvm::cl::ResetAllOptionOccurrences();
  here.exclusive = false;
  here.changed.notify_all();
}

} // namespace mlir::triton::tools
