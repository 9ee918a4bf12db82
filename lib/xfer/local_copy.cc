#include "xfer/local_copy.h"

#include "base/assert.h"
#include "base/copy_crc.h"
#include "xfer/router.h"

namespace mc::xfer {

void copy_locally(OpenBatch& batch, std::span<const PeerDirectory::Place> places, size_t row, Tally& tally) {
  MC_ASSERT_EQ(places.size(), batch.requests.size());
  uint64_t read = 0, written = 0, whole = 0, urgent = 0, bulk = 0;
  for (const Request& request : batch.requests) whole += request.local.size();
  for (size_t i = 0; i < places.size(); ++i) {
    const Request& request = batch.requests[i];
    RequestResult& result = batch.results[i];
    const size_t bytes = request.local.size();
    result.bytes = bytes;
    (request.transfer_class == TransferClass::urgent ? urgent : bulk) += bytes;
    if (request.op == Op::write) {
      copy_bytes(places[i].at, request.local.data(), bytes, whole);
      written += bytes;
      continue;
    }
    read += bytes;
    if (!request.crc32c) {
      copy_bytes(request.local.data(), places[i].at, bytes, whole);
      continue;
    }
    result.crc32c = copy_crc32c(request.local.data(), places[i].at, bytes, 0, whole);
    if (result.crc32c == *request.crc32c) continue;
    result.code = Code::corrupt;
    tally.add(Count::checksum_failures);
    tally.add(Count::requests_failed);
    if (batch.code != Code::ok) continue;
    batch.code = Code::corrupt;
    batch.text = "request " + std::to_string(i) + ": " + request_text(request) +
                 ": the bytes sum to another CRC32C than expected";
  }
  MC_ASSERT_EQ(read + written, whole);
  batch.unfinished = 0;
  tally.add(Count::batches_submitted);
  tally.add(Count::slices_posted, places.size());
  tally.add(row, Flow::slices, places.size());
  if (urgent > 0) tally.add(Count::urgent_bytes, urgent);
  if (bulk > 0) tally.add(Count::bulk_bytes, bulk);
  if (read > 0) tally.add(row, Flow::read_bytes, read);
  if (written > 0) tally.add(row, Flow::written_bytes, written);
}

}  // namespace mc::xfer
