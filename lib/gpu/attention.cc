#include "gpu/attention.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "gpu/kernels/attention.h"

namespace mc::gpu {
namespace {

Error limit(const std::string& text) {
  return {Code::unsupported, "attention on a GPU: " + text};
}

template <class T>
T* device_pointer(uint64_t address) {
  return reinterpret_cast<T*>(address);  // never followed on the host
}

Result<void> check(const AttentionCall& call) {
  const ExtentLayout& l = call.layout;
  if (l.head_dim != 64 && l.head_dim != 128)
    return limit("the head dimension is " + std::to_string(l.head_dim) + ", kernels exist for 64 and 128");
  if (l.dtype != Dtype::bf16) return limit("K and V are " + std::string(to_string(l.dtype)) + ", kernels read bf16");
  if (l.block_tokens % kKeyTile != 0)
    return limit("a page holds " + std::to_string(l.block_tokens) + " tokens, kernels read 64 at a time");
  if (call.q_heads <= 0 || call.q_heads % static_cast<int32_t>(l.kv_heads) != 0)
    return limit(std::to_string(call.q_heads) + " query heads are no multiple of " + std::to_string(l.kv_heads));
  for (const SequenceRows& s : call.sequences) {
    if (s.kv_len > INT32_MAX - 1024)
      return limit("a sequence of " + std::to_string(s.kv_len) + " tokens, at most 2^31");
    if (s.mode.kind == attn::ModeKind::moba) {
      if (s.mode.block % static_cast<int32_t>(l.block_tokens) != 0 || s.mode.block <= 0)
        return limit("a MoBA block of " + std::to_string(s.mode.block) + " tokens is no multiple of the page's");
      if (s.mode.top_k < 1 || s.mode.top_k - 1 > kChosenMax)
        return limit("top_k is " + std::to_string(s.mode.top_k) + ", at most " + std::to_string(kChosenMax + 1));
      if (s.kv_len / s.mode.block >= kUnionBlocksMax)
        return limit(std::to_string(s.kv_len / s.mode.block) + " MoBA blocks, at most " +
                     std::to_string(kUnionBlocksMax));
    }
    if (s.pages.size() * l.block_tokens < static_cast<size_t>(std::max<int64_t>(s.kv_len, 0)))
      return limit("a sequence of " + std::to_string(s.kv_len) + " tokens has " + std::to_string(s.pages.size()) +
                   " pages");
  }
  return {};
}

/// Memory that one call needs on the device beside its arguments.
struct Scratch {
  std::vector<DeviceBuffer> buffers;
  Result<uint64_t> add(Device& device, size_t bytes, std::string_view what) {
    MC_TRY(buffer, DeviceBuffer::make(device, std::max<size_t>(bytes, 16), what));
    buffers.push_back(std::move(buffer));
    return buffers.back().address();
  }
  template <class T>
  Result<uint64_t> add(Device& device, const std::vector<T>& values, std::string_view what) {
    MC_TRY(address, add(device, values.size() * sizeof(T), what));
    if (!values.empty()) MC_CHECK(device.write(address, std::as_bytes(std::span(values))));
    return address;
  }
};

/// Sequences as the kernels read them, with their page tables and the room for their centroids on the device.
Result<std::vector<Sequence>> describe(Device& device, const AttentionCall& call, Scratch& scratch) {
  std::vector<Sequence> out;
  int32_t first = 0;
  for (const SequenceRows& s : call.sequences) {
    MC_TRY(pages, scratch.add(device, s.pages, "page table"));
    Sequence one{.q_begin = s.q_begin, .kv_len = s.kv_len, .first_token = first, .tokens = s.tokens, .mode = s.mode};
    one.pages = device_pointer<const int32_t>(pages);
    if (s.mode.kind == attn::ModeKind::moba) {
      const auto blocks = static_cast<size_t>(s.kv_len / s.mode.block);
      MC_TRY(centroids, scratch.add(device, call.layout.kv_heads * blocks * call.layout.head_dim * 2, "centroids"));
      one.centroids = device_pointer<const uint16_t>(centroids);
    }
    first += s.tokens;
    out.push_back(one);
  }
  return out;
}

std::string kernel_name(std::string_view base, const ExtentLayout& layout) {
  return std::string(base) + "_d" + std::to_string(layout.head_dim);
}

Result<void> run_gate(Device& device, const AttentionCall& call, const std::vector<Sequence>& sequences,
                      const AttentionArgs& args, uint32_t row_tiles) {
  for (const Sequence& s : sequences) {
    if (s.mode.kind != attn::ModeKind::moba || s.kv_len < s.mode.block) continue;
    const CentroidArgs one{.pool = args.pool,
                           .pages = s.pages,
                           .moba_block = s.mode.block,
                           .blocks = static_cast<int32_t>(s.kv_len / s.mode.block),
                           .head_dim = static_cast<int32_t>(call.layout.head_dim),
                           .centroids = const_cast<uint16_t*>(s.centroids)};
    MC_CHECK(device.launch("moba_centroids", {.grid = {static_cast<uint32_t>(one.blocks), call.layout.kv_heads, 1}},
                           bytes_of(one)));
  }
  const GateArgs gate{.pool = args.pool,
                      .sequences = args.sequences,
                      .q_heads = call.q_heads,
                      .chosen = args.chosen,
                      .q = args.q,
                      .selection = const_cast<int32_t*>(args.selection)};
  return device.launch(kernel_name("moba_gate", call.layout),
                       {.grid = {row_tiles, call.layout.kv_heads, static_cast<uint32_t>(sequences.size())}},
                       bytes_of(gate));
}

AttentionKernel choose(const Device& device, const AttentionCall& call, uint32_t rows) {
  if (call.kernel != AttentionKernel::automatic) return call.kernel;
  if (rows <= 16) return AttentionKernel::decode;
  return device.capability() == 90 ? AttentionKernel::hopper : AttentionKernel::prefill;
}

/// Keys or values of all pages: {head_dim, tokens of a page, kv_heads, pages}; a box is 64 columns of 64 tokens.
Result<EncodedMap> encode_pool(Device& device, const AttentionCall& call, uint64_t offset) {
  const ExtentLayout& l = call.layout;
  uint64_t pages = 1;
  for (const SequenceRows& s : call.sequences)
    for (const int32_t page : s.pages) pages = std::max(pages, static_cast<uint64_t>(page) + 1);
  return device.encode({.base = call.pool + offset,
                        .dims = {l.head_dim, l.block_tokens, l.kv_heads, pages},
                        .strides = {2, l.row_bytes(), l.head_bytes(), call.page_bytes},
                        .box = {64, kKeyTile, 1, 1}});
}

/// `rows`: of the longest sequence, for one KV head.
Result<void> run_kernel(Device& device, const AttentionCall& call, AttentionKernel kernel, const AttentionArgs& args,
                        uint32_t rows) {
  const bool hopper = kernel == AttentionKernel::hopper, decode = kernel == AttentionKernel::decode;
  const uint32_t tile_rows = hopper ? 128 : decode ? 16 : 64, row_bytes = call.layout.head_dim * 2;
  const uint32_t tiles = (rows + tile_rows - 1) / tile_rows;
  LaunchShape shape{.grid = {tiles * static_cast<uint32_t>(args.splits), call.layout.kv_heads,
                             static_cast<uint32_t>(call.sequences.size())},
                    .dynamic_shared = (tile_rows + 4 * kKeyTile) * row_bytes + kUnionBlocksMax / 8};
  if (!hopper) {
    const std::string name = kernel_name(decode ? "attention_decode" : "attention_prefill", call.layout);
    return device.launch(name, shape, bytes_of(args));
  }
  shape.threads = kHopperThreads;
  shape.dynamic_shared += kHopperBarrierBytes;
  MC_TRY(k_map, encode_pool(device, call, call.layout.k_offset()));
  MC_TRY(v_map, encode_pool(device, call, call.layout.v_offset()));
  const struct {
    AttentionArgs args;
    alignas(64) EncodedMap k_map;
    alignas(64) EncodedMap v_map;
  } params{args, k_map, v_map};
  return device.launch(kernel_name("attention_hopper", call.layout), shape, bytes_of(params));
}

}  // namespace

Result<void> attend(Device& device, const AttentionCall& call) {
  MC_CHECK(check(call));
  const ExtentLayout& layout = call.layout;
  int32_t longest = 0, total = 0, chosen = 0;
  for (const SequenceRows& s : call.sequences) {
    longest = std::max(longest, s.tokens);
    total += s.tokens;
    if (s.mode.kind == attn::ModeKind::moba) chosen = std::max(chosen, s.mode.top_k - 1);
  }
  if (total == 0) return {};
  Scratch scratch;
  MC_TRY(sequences, describe(device, call, scratch));
  MC_TRY(sequence_table, scratch.add(device, sequences, "sequences"));
  const auto group = static_cast<uint32_t>(call.q_heads) / layout.kv_heads;
  const size_t rows = static_cast<size_t>(total) * static_cast<size_t>(call.q_heads);
  const AttentionKernel kernel = choose(device, call, static_cast<uint32_t>(longest) * group);
  uint64_t selection = call.selection;
  if (selection == 0) {
    MC_TRY(made, scratch.add(device, rows * static_cast<size_t>(chosen) * 4, "selection"));
    selection = made;
  }
  AttentionArgs args{.pool = {device_pointer<const unsigned char>(call.pool), call.page_bytes, layout.head_bytes(),
                              static_cast<uint32_t>(layout.v_offset()), static_cast<uint32_t>(layout.ksum_offset()),
                              static_cast<uint32_t>(layout.kmean_offset()), static_cast<int32_t>(layout.block_tokens),
                              static_cast<int32_t>(layout.kv_heads)},
                     .sequences = device_pointer<const Sequence>(sequence_table),
                     .q_heads = call.q_heads,
                     .splits = std::max(call.splits, 1),
                     .total_tokens = total,
                     .scale_log2 = (call.scale != 0 ? call.scale : 1 / std::sqrt(static_cast<float>(layout.head_dim))) *
                                   std::numbers::log2e_v<float>,
                     .q = device_pointer<const uint16_t>(call.q),
                     .out = device_pointer<uint16_t>(call.out),
                     .selection = device_pointer<const int32_t>(selection),
                     .chosen = chosen};
  if (args.splits > 1) {
    const size_t states = static_cast<size_t>(args.splits) * rows;
    MC_TRY(o, scratch.add(device, states * layout.head_dim * 4, "outputs of splits"));
    MC_TRY(m, scratch.add(device, states * 4, "maxima of splits"));
    MC_TRY(d, scratch.add(device, states * 4, "sums of splits"));
    args.split_o = device_pointer<float>(o);
    args.split_m = device_pointer<float>(m);
    args.split_d = device_pointer<float>(d);
  }
  const uint32_t row_tiles = (static_cast<uint32_t>(longest) * group + 63) / 64;
  if (chosen > 0 && !call.selection_given) MC_CHECK(run_gate(device, call, sequences, args, row_tiles));

  MC_CHECK(run_kernel(device, call, kernel, args, static_cast<uint32_t>(longest) * group));
  if (args.splits == 1) return {};
  struct {
    AttentionArgs args;
    int32_t head_dim;
  } combine{args, static_cast<int32_t>(layout.head_dim)};
  return device.launch("attention_combine", {.grid = {static_cast<uint32_t>(rows), 1, 1}},
                       bytes_of(combine).first(sizeof(AttentionArgs) + 4));
}

}  // namespace mc::gpu
