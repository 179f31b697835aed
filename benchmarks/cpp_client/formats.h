// Formats of the wire (wire/SPEC.md): hashes, signed messages, stored ZIP archives, tensor files, arrays of numpy.
#pragma once

#include <fcntl.h>
#include <openssl/evp.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

using Json = nlohmann::ordered_json;
using View = std::string_view;

[[noreturn]] inline void fail(const std::string& text) {
  throw std::runtime_error(text);
}

inline std::string sha256(View bytes) {
  unsigned char digest[32];
  EVP_Digest(bytes.data(), bytes.size(), digest, nullptr, EVP_sha256(), nullptr);
  std::string text;
  for (unsigned char byte : digest) {
    text += "0123456789abcdef"[byte >> 4];
    text += "0123456789abcdef"[byte & 15];
  }
  return text;
}

inline std::string from_base64(View text) {
  std::string bytes(text.size() / 4 * 3 + 3, '\0');
  const int size = EVP_DecodeBlock(reinterpret_cast<unsigned char*>(&bytes[0]), reinterpret_cast<const unsigned char*>(text.data()), text.size());
  if (size < 0 || text.size() % 4) {
    fail("signature is not base64");
  }
  bytes.resize(size - (text.size() > 0 && text.back() == '=') - (text.size() > 1 && text[text.size() - 2] == '='));
  return bytes;
}

inline bool verifies(View key, View signature, const std::string& text) {
  std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)> loaded(
      EVP_PKEY_new_raw_public_key(EVP_PKEY_ED25519, nullptr, reinterpret_cast<const unsigned char*>(key.data()), key.size()), EVP_PKEY_free);
  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context(EVP_MD_CTX_new(), EVP_MD_CTX_free);
  return loaded && EVP_DigestVerifyInit(context.get(), nullptr, nullptr, nullptr, loaded.get()) == 1 &&
      EVP_DigestVerify(
          context.get(), reinterpret_cast<const unsigned char*>(signature.data()), signature.size(),
          reinterpret_cast<const unsigned char*>(text.data()), text.size()) == 1;
}

// Returns the 32 bytes of a root key from its PEM file.
inline std::string read_trust(const std::string& path) {
  std::ifstream file(path);
  std::string line, text;
  while (std::getline(file, line)) {
    text += line[0] == '-' ? "" : line;
  }
  const std::string der = from_base64(text);
  return der.size() == 44 ? der.substr(12) : (fail(path + " has no Ed25519 key"), "");
}

// Returns the message of four signed lines: message, signature, voucher, the voucher's signature.
inline Json open_signed(const std::string& payload, View root, const std::string& fleet, double now_s) {
  std::vector<std::string> lines(1);
  for (char sign : payload) {
    sign == '\n' ? void(lines.emplace_back()) : lines.back().push_back(sign);
  }
  if (lines.size() != 4 || !verifies(root, from_base64(lines[3]), "shoal/1 voucher\n" + lines[2])) {
    fail("message without a voucher of the root key");
  }
  const Json voucher = Json::parse(lines[2]);
  std::string key;
  for (size_t at = 0; at + 1 < voucher.at("key").get_ref<const std::string&>().size(); at += 2) {
    key.push_back(static_cast<char>(std::stoi(voucher["key"].get_ref<const std::string&>().substr(at, 2), nullptr, 16)));
  }
  if (voucher.at("fleet") != fleet || !(now_s <= voucher.at("not_after_s").get<double>()) ||
      !verifies(key, from_base64(lines[1]), "shoal/1 message\n" + lines[0])) {
    fail("message of another fleet, of an expired service, or with a wrong signature");
  }
  return Json::parse(lines[0]);
}

// A file that is mapped into memory: its pages can be dropped, so they do not count as the client's own.
class Mapped {
 public:
  explicit Mapped(const std::string& path) {
    const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    struct stat about {};
    if (file < 0 || fstat(file, &about)) {
      fail("cannot read " + path);
    }
    size_ = about.st_size;
    data_ = mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file, 0);
    close(file);
    if (data_ == MAP_FAILED) {
      fail("cannot map " + path);
    }
  }
  Mapped(const Mapped&) = delete;
  ~Mapped() {
    munmap(data_, size_);
  }
  View bytes() const {
    return {static_cast<const char*>(data_), size_};
  }

 private:
  void* data_;
  size_t size_;
};

template <typename Number>
Number number_at(View bytes, size_t at) {
  Number number;
  if (at > bytes.size() || sizeof number > bytes.size() - at) {
    fail("a file ends too early");
  }
  std::memcpy(&number, bytes.data() + at, sizeof number);
  return number;
}

inline View part_of(View bytes, size_t at, size_t size) {
  return at <= bytes.size() && size <= bytes.size() - at ? bytes.substr(at, size) : (fail("a file ends too early"), View());
}

// Returns the members of a ZIP archive without compression.
inline std::map<std::string, View> members(View archive) {
  const size_t end = archive.rfind("PK\5\6");
  std::map<std::string, View> found;
  size_t at = number_at<uint32_t>(archive, end + 16);
  for (int left = number_at<uint16_t>(archive, end + 10); left > 0; --left) {
    const size_t name = number_at<uint16_t>(archive, at + 28), size = number_at<uint32_t>(archive, at + 20);
    const size_t local = number_at<uint32_t>(archive, at + 42);
    const size_t start = local + 30 + number_at<uint16_t>(archive, local + 26) + number_at<uint16_t>(archive, local + 28);
    if (number_at<uint16_t>(archive, at + 10) != 0) {
      fail("an archive is compressed");
    }
    found[std::string(part_of(archive, at + 46, name))] = part_of(archive, start, size);
    at += 46 + name + number_at<uint16_t>(archive, at + 30) + number_at<uint16_t>(archive, at + 32);
  }
  return found;
}

struct Tensor {
  std::string dtype; // as in tensor files: F32, I64, ...
  std::vector<int64_t> shape;
  std::string data;
};
using Tensors = std::map<std::string, Tensor>;

inline Tensors read_tensors(View file) {
  const size_t start = 8 + number_at<uint64_t>(file, 0);
  const Json header = Json::parse(part_of(file, 8, start - 8));
  Tensors tensors;
  for (const auto& [name, entry] : header.items()) {
    if (name != "__metadata__") {
      const size_t from = entry.at("data_offsets").at(0), to = entry.at("data_offsets").at(1);
      tensors[name] = {entry.at("dtype"), entry.at("shape"), std::string(part_of(file, start + from, to - from))};
    }
  }
  return tensors;
}

// Returns a tensor file of float32 tensors, with a message in its header.
inline std::string write_tensors(const Tensors& tensors, const Json& message) {
  Json header = {{"__metadata__", {{"shoal", message.dump()}}}};
  std::string data;
  for (const auto& [name, tensor] : tensors) {
    header[name] = {{"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {data.size(), data.size() + tensor.data.size()}}};
    data += tensor.data;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const uint64_t size = text.size();
  return std::string(reinterpret_cast<const char*>(&size), 8) + text + data;
}

// Windows of a device: those of train.npz or test.npz, which stay in the file.
struct Windows {
  explicit Windows(const std::string& path) : file(path) {
    const auto arrays = members(file.bytes());
    x = array(arrays.at("X.npy"), "<f4");
    y = array(arrays.at("y.npy"), "<i8");
    count = y.size() / 8;
    bytes_each = count ? x.size() / count : 0;
  }
  static View array(View npy, const std::string& type) {
    const size_t size = number_at<uint16_t>(npy, 8);
    const View header = part_of(npy, 10, size);
    if (header.find(type) == View::npos || header.find("'fortran_order': False") == View::npos) {
      fail("an array is not row-major " + type);
    }
    return npy.substr(10 + size);
  }
  Mapped file;
  View x, y;
  size_t count, bytes_each;
};
