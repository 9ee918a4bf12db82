#include "gguf/file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "gguf_writer.h"
#include "test.h"

using namespace mc;
using namespace mc::gguf;
using test::GgufWriter;
using Folder = test::GgufFolder;

namespace {

namespace fs = std::filesystem;

/// Part `number` of `count` with one tensor.
GgufWriter part(uint32_t number, uint32_t count, const std::string& tensor, uint32_t tensors = 2) {
  GgufWriter writer;
  writer.whole("split.no", number).whole("split.count", count).whole("split.tensors.count", tensors);
  writer.text("general.name", "part " + std::to_string(number));
  writer.tensor(tensor, {4}, Type::f32, std::string(16, static_cast<char>(number + 1)));
  return writer;
}

}  // namespace

TEST_CASE("gguf/file: a file gives its tensors, and fields with the wrong type name file, key and value") {
  const Folder folder;
  GgufWriter writer;
  writer.whole("n", 70).number("e", 1e-5f).text("s", "x").flag("f", true);
  writer.numbers<int32_t>("same", ValueType::i32, {4, 4}).numbers<int32_t>("differ", ValueType::i32, {4, 5});
  writer.numbers<uint8_t>("long", ValueType::u8, std::vector<uint8_t>(1025, 4));
  writer.tensor("w", {1, 4}, Type::f32, std::string(16, '\5'));
  const std::string path = folder.write("m.gguf", writer);
  CHECK(is_gguf(path));
  CHECK_FALSE(is_gguf(folder.path.string()));
  const auto file = File::open(path);
  REQUIRE_OK(file);
  REQUIRE(file->find_tensor("w") != nullptr);
  CHECK(file->find_tensor("w")->data[15] == std::byte{5});
  CHECK(file->find_tensor("v") == nullptr);
  CHECK(file->whole("n", 1, 100).value() == 70);
  CHECK(file->whole("same", 1, 100).value() == 4);
  CHECK_FALSE(file->whole("absent", 1, 100).value().has_value());
  CHECK(file->whole("n", 1, 69).error().what == path + ": n is 70; it must be a whole number from 1 to 69");
  CHECK(file->whole("s", 1, 69).error().what == path + ": s is 'x'; it must be a whole number from 1 to 69");
  CHECK(file->whole("differ", 1, 9).error().mc == err::kModelUnsupported);
  CHECK(file->whole("long", 1, 9).error().what ==
        path + ": long is [1025 of u8]; it must be a whole number, or at most 1024 that are equal");
  CHECK(file->positive("e").value() == doctest::Approx(1e-5));
  CHECK(file->positive("s").error().what == path + ": s is 'x'; it must be a positive number");
  CHECK(file->text("s").value() == "x");
  CHECK(file->text("n").error().mc == err::kConfigInvalid);
  CHECK(file->flag("f").value() == true);
  CHECK(file->flag("n").error().what == path + ": n is 70; it must be true or false");
}

TEST_CASE("gguf/file: the parts of a split model are one model with the first part's metadata") {
  const Folder folder;
  const std::string first = folder.write("m-00001-of-00002.gguf", part(0, 2, "b"));
  folder.write("m-00002-of-00002.gguf", part(1, 2, "a"));
  const auto file = File::open(first);
  REQUIRE_OK(file);
  REQUIRE(file->tensors().size() == 2);
  CHECK(file->tensors()[0].info.name == "a");
  CHECK(file->find_tensor("a")->data[0] == std::byte{2});
  CHECK(file->find_tensor("b")->data[0] == std::byte{1});
  CHECK(file->text("general.name").value() == "part 0");
}

TEST_CASE("gguf/file: parts that are missing, foreign, misnamed or not the first are refused by name") {
  const Folder folder;
  const std::string first = folder.write("m-00001-of-00002.gguf", part(0, 2, "b"));
  const std::string second = (folder.path / "m-00002-of-00002.gguf").string();
  auto opened = File::open(first);
  CHECK(opened.error().mc == err::kModelIncomplete);
  CHECK(opened.error().what.find(second) != std::string::npos);
  REQUIRE(::mkfifo(second.c_str(), 0600) == 0);
  CHECK(File::open(first).error().what == second + ": is not a regular file");
  fs::remove(second);
  folder.write("m-00002-of-00002.gguf", part(1, 3, "a"));
  CHECK(File::open(first).error().what.find("says that it is part 1 of 3") != std::string::npos);
  folder.write("m-00002-of-00002.gguf", part(1, 2, "b"));
  CHECK(File::open(first).error().what.find("both have tensor 'b'") != std::string::npos);
  folder.write("m-00002-of-00002.gguf", part(1, 2, "a"));
  CHECK(File::open(second).error().what.find("split.no is 1; this is not the first part") != std::string::npos);
  CHECK(File::open(folder.write("renamed.gguf", part(0, 2, "b"))).error().what.find("-00001-of-00002.gguf") !=
        std::string::npos);
  folder.write("m-00001-of-00002.gguf", part(0, 2, "b", 3));
  CHECK(File::open(first).error().what.find("split.tensors.count is 3, but the 2 parts have 2 tensors") !=
        std::string::npos);
  CHECK(File::open((folder.path / "none.gguf").string()).error().mc == err::kModelIncomplete);
  CHECK(File::open(folder.path.string()).error().mc != 0);
}
