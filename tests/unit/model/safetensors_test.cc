#include "model/safetensors.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "test.h"

using namespace mc;
using namespace mc::model;

namespace {

namespace fs = std::filesystem;

/// A directory that disappears with the test.
struct Folder {
  static int next() {
    static int count = 0;
    return ++count;
  }
  fs::path path;
  Folder()
      : path(fs::path(test::binary_dir()) / "tests" /
             ("safetensors-" + std::to_string(::getpid()) + "-" + std::to_string(next()))) {
    fs::remove_all(path);
    fs::create_directories(path);
  }
  ~Folder() { fs::remove_all(path); }
  void write(const std::string& name, const std::string& bytes) const {
    std::ofstream(path / name, std::ios::binary) << bytes;
  }
};

std::string file_of(const std::string& header, size_t data_bytes) {
  std::string file;
  for (int i = 0; i < 8; ++i) file += static_cast<char>(header.size() >> (8 * i) & 255);
  return file + header + std::string(data_bytes, '\1');
}

std::string error_of(const std::string& header, size_t data_bytes) {
  const std::string file = file_of(header, data_bytes);
  const auto parsed = parse_safetensors(std::as_bytes(std::span(file)), file.size(), "w.safetensors");
  return parsed.has_value() ? "ok" : parsed.error().what;
}

std::string tensor(const std::string& name, const std::string& dtype, const std::string& shape, int begin, int end) {
  return "\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape + ",\"data_offsets\":[" +
         std::to_string(begin) + "," + std::to_string(end) + "]}";
}

}  // namespace

TEST_CASE("model/safetensors: a correct header gives every tensor by name, whatever order the file has") {
  const std::string file =
      file_of("{\"__metadata__\":{\"format\":\"pt\"}," + tensor("b", "BF16", "[2,3]", 8, 20) + "," +
                  tensor("a", "F32", "[2]", 0, 8) + "," + tensor("empty", "I64", "[0,4]", 20, 20) + "," +
                  tensor("scalar", "U8", "[]", 20, 21) + "}",
              21);
  const auto parsed = parse_safetensors(std::as_bytes(std::span(file)), file.size(), "w");
  REQUIRE_OK(parsed);
  REQUIRE(parsed->tensors.size() == 4);
  CHECK(parsed->tensors[0].name == "a");
  CHECK(parsed->tensors[1].dtype == Dtype::bf16);
  CHECK(parsed->tensors[1].shape_text() == "[2, 3]");
  CHECK(parsed->tensors[1].elements() == 6);
  CHECK(!parsed->tensors[2].dtype);
  CHECK(parsed->tensors[3].shape_text() == "[]");
}

TEST_CASE("model/safetensors: lying headers are refused with file, tensor and numbers") {
  CHECK(error_of("{}", 0) == "ok");
  CHECK(error_of("{" + tensor("t", "F32", "[2]", 0, 12) + "}", 8) ==
        "w.safetensors: tensor 't' lies at bytes 0 to 12, but the file holds 8 bytes of data; is it truncated?");
  CHECK(error_of("{" + tensor("t", "F32", "[3]", 0, 8) + "}", 8) ==
        "w.safetensors: tensor 't' of shape [3] and dtype F32 needs 12 bytes, its data_offsets give 8");
  CHECK(error_of("{" + tensor("t", "F32", "[2]", 8, 0) + "}", 8).find("lies at bytes 8 to 0") != std::string::npos);
  CHECK(error_of("{" + tensor("a", "F32", "[2]", 0, 8) + "," + tensor("b", "F32", "[2]", 4, 12) + "}", 12) ==
        "w.safetensors: tensor 'b' at byte 4 overlaps 'a', which ends at 8");
  CHECK(error_of("{" + tensor("a", "F32", "[1]", 4, 8) + "}", 8) ==
        "w.safetensors: bytes 0 to 4 of the data belong to no tensor");
  CHECK(error_of("{" + tensor("a", "F32", "[1]", 0, 4) + "}", 9) ==
        "w.safetensors: the last 5 bytes of the data belong to no tensor");
  CHECK(error_of("{" + tensor("a", "Q4_K", "[1]", 0, 4) + "}", 4) == "w.safetensors: tensor 'a' has dtype 'Q4_K'");
  CHECK(error_of("{" + tensor("a", "F32", "[-1]", 0, 4) + "}", 4) ==
        "w.safetensors: tensor 'a' has a size that is no whole number: -1");
  CHECK(error_of("{" + tensor("a", "F32", "[4294967296,4294967296]", 0, 4) + "}", 4) ==
        "w.safetensors: tensor 'a' is larger than 2^64 bytes");
  CHECK(error_of("{" + tensor("a", "F32", "[1,1,1,1,1,1,1,1,1]", 0, 4) + "}", 4).find("at most 8 sizes") !=
        std::string::npos);
  CHECK(error_of("{\"a\":7}", 0) == "w.safetensors: tensor 'a' is described by a integer");
  CHECK(error_of("{\"a\":{\"shape\":[],\"data_offsets\":[0,0]}}", 0) == "w.safetensors: tensor 'a' has no dtype");
  CHECK(error_of("{\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0]}}", 0) ==
        "w.safetensors: tensor 'a' has no data_offsets [begin, end]");
  CHECK(error_of("[]", 0) == "w.safetensors: header is a array, not an object");
  CHECK(error_of("{" + tensor("a", "U8", "[1]", 0, 1) + "," + tensor("a", "U8", "[1]", 0, 1) + "}", 1)
            .find("w.safetensors: header: ") == 0);
  CHECK(error_of("{\"a\":", 0).find("w.safetensors: header: ") == 0);
}

TEST_CASE("model/safetensors: a header length that cannot be is refused before anything is allocated") {
  for (const std::string& file :
       {std::string(), std::string("1234567"), std::string(8, '\xff'), std::string("\x10\0\0\0\0\0\0\0{}", 10)}) {
    const auto parsed = parse_safetensors(std::as_bytes(std::span(file)), file.size(), "w");
    REQUIRE(!parsed.has_value());
    CHECK(parsed.error().code == Code::corrupt);
    CHECK(parsed.error().mc == 3002);
  }
}

TEST_CASE("model/safetensors: directories without weights, with missing shards or a lying index are refused") {
  Folder folder;
  const std::string where = folder.path.string();
  const auto error = [&] {
    const auto files = WeightFiles::open(where);
    return files.has_value() ? std::string("ok") : files.error().what;
  };
  CHECK(error() == where + " has neither model.safetensors nor model.safetensors.index.json");
  const auto index = [&](const std::string& map) {
    folder.write("model.safetensors.index.json", "{\"weight_map\":" + map + "}");
  };
  index("{\"a\":\"s1.safetensors\",\"b\":\"s2.safetensors\"}");
  folder.write("s1.safetensors", file_of("{" + tensor("a", "U8", "[1]", 0, 1) + "}", 1));
  CHECK(error().find("open " + where + "/s2.safetensors: No such file") == 0);
  folder.write("s2.safetensors", file_of("{" + tensor("c", "U8", "[1]", 0, 1) + "}", 1));
  CHECK(error() ==
        where + "/model.safetensors.index.json: tensor 'b' is not in s2.safetensors, where weight_map says it is");
  folder.write("s2.safetensors", file_of("{" + tensor("b", "U8", "[1]", 0, 1) + "}", 1));
  CHECK(error() == "ok");
  folder.write("s2.safetensors", "short");
  CHECK(error() == where + "/s2.safetensors: is 5 bytes long: no safetensors header");
  index("{\"a\":\"../s1.safetensors\"}");
  CHECK(error().find("is in '../s1.safetensors', which is no plain file name") != std::string::npos);
  index("{}");
  CHECK(error() == where + "/model.safetensors.index.json: has no weight_map");
  folder.write("model.safetensors", "");
  CHECK(error() == where + "/model.safetensors: is 0 bytes long: no safetensors header");
}

TEST_CASE("model/safetensors: a tensor of another shape or an unusable dtype is refused on use") {
  Folder folder;
  folder.write("model.safetensors",
               file_of("{" + tensor("a", "F32", "[2]", 0, 8) + "," + tensor("i", "I8", "[2]", 8, 10) + "," +
                           tensor("e", "F32", "[2,0]", 10, 10) + "}",
                       10));
  const auto files = WeightFiles::open(folder.path.string());
  REQUIRE_OK(files);
  const uint64_t two[] = {2}, other[] = {3, 1}, none[] = {2, 0};
  CHECK(files->require("a", two).has_value());
  CHECK(files->require("a", other).error().what.find("tensor 'a' has shape [2]; config.json asks for [3, 1]") !=
        std::string::npos);
  CHECK(files->require("z", two).error().what.find("has no tensor 'z'") != std::string::npos);
  CHECK(files->require("e", none).error().what.find("tensor 'e' has shape [2, 0], which is empty") !=
        std::string::npos);
  CHECK(files->require("i", two).error().what.find("has dtype I8; weights must be F32, F16 or BF16") !=
        std::string::npos);
}

TEST_CASE("model/safetensors: the digest follows names, shapes and bytes, not how files are cut") {
  Folder one, two, three;
  const std::string a = tensor("a", "U8", "[1]", 0, 1);
  one.write("model.safetensors", file_of("{" + a + "," + tensor("b", "U8", "[2]", 1, 3) + "}", 3));
  two.write("x.safetensors", file_of("{" + a + "}", 1));
  two.write("y.safetensors", file_of("{\"__metadata__\":{}," + tensor("b", "U8", "[2]", 0, 2) + "}", 2));
  two.write("model.safetensors.index.json", R"({"weight_map":{"b":"y.safetensors","a":"x.safetensors"}})");
  three.write("model.safetensors", file_of("{" + a + "," + tensor("b", "U8", "[2,1]", 1, 3) + "}", 3));
  const auto digest = [](const Folder& folder) {
    auto files = WeightFiles::open(folder.path.string());
    REQUIRE_OK(files);
    return files->digest();
  };
  CHECK(digest(one).size() == 64);
  CHECK(digest(one) == digest(two));
  CHECK(digest(one) != digest(three));
}

TEST_CASE("model/safetensors: one other bit anywhere in a small file gives another digest") {
  Folder folder;
  constexpr size_t kBytes = 2 * 4096 + 7;  // the last piece is short
  std::string bytes(kBytes, '\0');
  for (size_t i = 0; i < kBytes; ++i) bytes[i] = static_cast<char>(i * 131 >> 3);
  const std::string header =
      "{" + tensor("a", "U8", "[" + std::to_string(kBytes) + "]", 0, static_cast<int>(kBytes)) + "}";
  const auto digest = [&](const std::string& data) {
    folder.write("model.safetensors", file_of(header, 0) + data);
    auto files = WeightFiles::open(folder.path.string());
    REQUIRE_OK(files);
    return files->digest();
  };
  std::set<std::string> seen{digest(bytes)};
  for (const size_t at : {size_t{0}, size_t{4095}, size_t{4096}, size_t{8191}, kBytes - 1}) {
    std::string other = bytes;
    other[at] = static_cast<char>(other[at] ^ 16);
    CHECK_MESSAGE(seen.insert(digest(other)).second, "byte ", at);
  }
}
