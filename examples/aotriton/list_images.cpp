// Finds the AOTriton library of this program, as AOTriton's loader does, and lists the kernel images next to it.
//
//   list_images            prints the numbers of .aks2 files, code objects and bytes of each archive or folder
//   list_images --names    prints a line for each code object
//
// An archive is a .zip file whose uncompressed members are .aks2 files. An .aks2 file consists of "AKS2", the
// uncompressed size, the number of kernels, the size of the directory, and an LZMA stream of the directory and the code
// objects. Numbers are little-endian. AOTriton before 0.13 has folders of .aks2 files instead of archives.
#include <aotriton/config.h>
#include <aotriton/flash.h>

#include <link.h>
#include <lzma.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace fs = std::filesystem;

namespace {

[[noreturn]] void damaged(const std::string &what) { throw std::runtime_error(what); }

// Returns the number that `bytes` bytes at `offset` contain.
std::uint64_t number(std::string_view data, std::uint64_t offset, int bytes) {
  if (offset + bytes > data.size())
    damaged("the data ends too early");
  std::uint64_t value = 0;
  for (int index = bytes; index-- > 0;)
    value = value << 8 | static_cast<unsigned char>(data[offset + index]);
  return value;
}

std::string_view part(std::string_view data, std::uint64_t offset, std::uint64_t size) {
  if (offset > data.size() || size > data.size() - offset)
    damaged("the data ends too early");
  return data.substr(offset, size);
}

struct Kernel {
  std::string name;
  std::uint64_t size;
};

std::vector<Kernel> kernels(std::string_view aks2) {
  if (part(aks2, 0, 4) != "AKS2")
    damaged("a member is not an AKS2 file");
  const std::uint64_t total = number(aks2, 4, 4), count = number(aks2, 8, 4), directory = number(aks2, 12, 4);
  std::string content(total, '\0');
  lzma_stream stream = LZMA_STREAM_INIT;
  if (lzma_auto_decoder(&stream, UINT64_MAX, 0) != LZMA_OK)
    damaged("there is not enough memory to decompress a member");
  stream.next_in = reinterpret_cast<const std::uint8_t *>(aks2.data()) + 16;
  stream.avail_in = aks2.size() - 16;
  stream.next_out = reinterpret_cast<std::uint8_t *>(content.data());
  stream.avail_out = content.size();
  const lzma_ret said = lzma_code(&stream, LZMA_FINISH);
  const bool whole = said == LZMA_STREAM_END && stream.avail_out == 0;
  lzma_end(&stream);
  if (!whole)
    damaged("a member does not decompress to its size");
  std::vector<Kernel> found;
  std::uint64_t at = 0;
  for (std::uint64_t index = 0; index < count; ++index) {
    const std::uint64_t offset = number(content, at + 8, 4), size = number(content, at + 12, 4);
    const std::uint64_t length = number(content, at + 16, 4);
    // The name ends with a NUL.
    if (length == 0 || at + 20 + length > directory)
      damaged("a directory of code objects is damaged");
    std::string name(part(content, at + 20, length - 1));
    const std::string_view object = part(std::string_view(content).substr(directory), offset, size);
    // An empty code object marks a kernel that did not compile.
    if (!object.empty() && object.substr(0, 4) != "\x7f" "ELF")
      damaged(name + " is not a code object");
    found.push_back({std::move(name), size});
    at += 20 + length;
  }
  return found;
}

struct Member {
  std::string name;
  std::string_view data;
};

std::vector<Member> members(std::string_view zip) {
  constexpr std::string_view end("PK\x05\x06", 4);
  const std::size_t last = zip.rfind(end);
  if (last == std::string_view::npos)
    damaged("the file is not a zip archive");
  const std::uint64_t count = number(zip, last + 10, 2);
  std::uint64_t at = number(zip, last + 16, 4);
  std::vector<Member> found;
  for (std::uint64_t index = 0; index < count; ++index) {
    if (number(zip, at, 4) != 0x02014b50)
      damaged("the directory of the zip archive is damaged");
    const std::uint64_t size = number(zip, at + 20, 4), local = number(zip, at + 42, 4);
    const std::uint64_t name = number(zip, at + 28, 2);
    if (number(zip, at + 10, 2) != 0)
      damaged("a member is compressed, but the loader only reads uncompressed members");
    const std::uint64_t data = local + 30 + number(zip, local + 26, 2) + number(zip, local + 28, 2);
    found.push_back({std::string(part(zip, at + 46, name)), part(zip, data, size)});
    at += 46 + name + number(zip, at + 30, 2) + number(zip, at + 32, 2);
  }
  return found;
}

std::string content(const fs::path &path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

// Returns the path of the library that the dynamic linker loaded.
fs::path library() {
  std::string found;
  dl_iterate_phdr(
      [](dl_phdr_info *info, std::size_t, void *data) {
        if (std::strstr(info->dlpi_name, "libaotriton") == nullptr)
          return 0;
        *static_cast<std::string *>(data) = info->dlpi_name;
        return 1;
      },
      &found);
  return found;
}

int run(bool names) {
  // The constructor of these parameters is in the library, so the program does not link or start without the library.
  aotriton::v3::flash::attn_fwd_params parameters;
  const fs::path file = library();
  std::printf("AOTriton %u.%u.%u in %s, attn_fwd from sequence %d\n", AOTRITON_VERSION_MAJOR, AOTRITON_VERSION_MINOR,
              AOTRITON_VERSION_PATCH, file.c_str(), static_cast<int>(parameters.Max_seqlen_q));
  const fs::path images = file.parent_path() / "aotriton.images";
  if (!fs::is_directory(images))
    damaged("there are no kernel images in " + images.string());
  std::map<fs::path, std::set<fs::path>> groups;
  for (const auto &one : fs::recursive_directory_iterator(images)) {
    const fs::path &path = one.path();
    if (path.extension() == ".zip")
      groups[path].insert(path);
    else if (path.extension() == ".aks2")
      groups[path.parent_path()].insert(path);
  }
  std::uint64_t objects = 0, empty = 0, files = 0, bytes = 0;
  for (const auto &[group, paths] : groups) {
    const std::string name = group.lexically_relative(images);
    std::uint64_t objects_here = 0, files_here = 0, bytes_here = 0;
    for (const fs::path &path : paths) {
      const std::string data = content(path);
      try {
        for (const Member &member : path == group ? members(data) : std::vector{Member{path.filename(), data}}) {
          ++files_here;
          for (const Kernel &kernel : kernels(member.data)) {
            if (names)
              std::printf("%s %s %s %llu\n", name.c_str(), member.name.c_str(), kernel.name.c_str(),
                          static_cast<unsigned long long>(kernel.size));
            objects_here += kernel.size != 0;
            empty += kernel.size == 0;
            bytes_here += kernel.size;
          }
        }
      } catch (const std::exception &error) {
        damaged(path.string() + ": " + error.what());
      }
    }
    if (!names)
      std::printf("%-55s %6llu .aks2 %7llu code objects %12llu bytes\n", name.c_str(),
                  static_cast<unsigned long long>(files_here), static_cast<unsigned long long>(objects_here),
                  static_cast<unsigned long long>(bytes_here));
    objects += objects_here, files += files_here, bytes += bytes_here;
  }
  std::printf("%zu archives or folders, %llu .aks2, %llu code objects, %llu known bad, %llu bytes\n", groups.size(),
              static_cast<unsigned long long>(files), static_cast<unsigned long long>(objects),
              static_cast<unsigned long long>(empty), static_cast<unsigned long long>(bytes));
  return objects == 0;
}

} // namespace

int main(int count, char **words) {
  try {
    return run(count > 1 && std::string_view(words[1]) == "--names");
  } catch (const std::exception &error) {
    std::fprintf(stderr, "list_images: %s\n", error.what());
    return 1;
  }
}
