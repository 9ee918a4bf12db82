// The public face of kv: the names of blocks, their pages, the leases of their readers, and the index of their holders
// in the cluster. All of it is book-keeping on values. The transfer engine moves the bytes.
//
//   chain.h   tokens -> BlockHash per full block    namespace.h    what must be equal to share blocks
//   pool.h    pages: free, owned, cached, draining  events.h       stored and removed, numbered
//   lease.h   dated promises to remote readers      eviction.h     contract of a policy
//   index.h   the conductor's view of all nodes     block_table.h  what a node publishes of its blocks
// and, for tools:  inspect.h  what is in a .mckv stream, how two differ;  trace_cache.h  hit rates of a trace
#pragma once

#include "kv/chain.h"
#include "kv/events.h"
#include "kv/eviction.h"
#include "kv/index.h"
#include "kv/lease.h"
#include "kv/namespace.h"
#include "kv/pool.h"
